"""Measurements on real engines: workloads, runs, tables and plots."""
