"""Kveik: one shared, verified KV cache under a fleet of vLLM engines."""

__version__ = "0.1.0"
