"""Finding a benchmark's papers inside a corpus."""
