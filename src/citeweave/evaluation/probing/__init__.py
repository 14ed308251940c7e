"""The solvers behind evaluation/probes.py."""
