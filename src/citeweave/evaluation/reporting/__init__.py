"""The forms of a report: Markdown, MTEB, one page of HTML, a map of papers."""
