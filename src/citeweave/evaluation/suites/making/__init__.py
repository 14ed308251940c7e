"""The parts of the suite that is made from a corpus: what is held out, and the papers of each task."""
