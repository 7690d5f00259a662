"""What a block is. Pure: no I/O, no torch, no vLLM."""
