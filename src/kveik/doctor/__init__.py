"""Finds out why a fleet runs and yet cannot be used: reads logs, versions and settings, and says what they mean.

What it knows lies in ``data/``, each fact with its source; the modules beside it compare, purely. Nothing is changed.
"""
