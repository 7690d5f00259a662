"""Benchmarks: each compares things within one run and judges a ratio, never an absolute time."""
