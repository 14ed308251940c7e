"""Evaluation: benchmark suites, the systems that they evaluate, metrics with intervals, reports and comparisons."""
