"""Where blocks live. Bytes in, bytes out, a result for every key."""
