"""Search over papers: build and update an index; query it by text, paper, sentences, or for what to cite."""
