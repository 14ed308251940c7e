"""Evaluation suites, one file each: reading published benchmarks, and drawing suites from a corpus."""
