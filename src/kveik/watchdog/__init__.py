"""Asks engines for real inferences, tells busy from hung, and restarts the right one once."""
