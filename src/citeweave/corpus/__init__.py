"""Papers, citations and contexts: read from anywhere, merged, kept as columns on disk."""
