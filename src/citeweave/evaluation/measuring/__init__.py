"""The formulas of evaluation, one file a kind of answer; `evaluation/metrics.py` knows them by name."""
