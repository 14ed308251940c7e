"""Clients of OpenAlex and Semantic Scholar, and the enrichment of a library with their records."""
