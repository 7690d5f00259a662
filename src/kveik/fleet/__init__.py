"""Which engines there are, and in what state."""
