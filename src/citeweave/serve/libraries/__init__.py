"""The library that `citeweave explore` shows: where its papers come from, and how it is kept up to date."""
