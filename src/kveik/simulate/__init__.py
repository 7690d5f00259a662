"""Engines that compute nothing: for tests and for planning."""
