"""Network: encoder, heads, fast CPU kernels, FLOP counts."""
