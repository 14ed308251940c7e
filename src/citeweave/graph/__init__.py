"""The citation graph: who cites whom, which papers are related, and vectors of the nodes."""
