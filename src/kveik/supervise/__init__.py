"""Keeps a node's processes alive, and lets others ask about them: over a Unix socket."""
