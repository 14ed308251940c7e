"""The HTTP API, its web page, and libraries that `citeweave explore` prepares."""
