"""Search over papers: build and update an index, and query it by text, paper, sentence, or what to cite in a draft."""
