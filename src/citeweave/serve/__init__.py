"""The HTTP API, its web page, and libraries that are prepared for exploring."""
