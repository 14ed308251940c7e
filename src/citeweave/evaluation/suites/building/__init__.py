"""Making a benchmark's files out of other files."""
