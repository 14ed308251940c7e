"""Benchmarks: one file a suite, which reads the published files and says what is asked."""
