"""The network: encoder, heads, fast CPU kernels, FLOP counts."""
