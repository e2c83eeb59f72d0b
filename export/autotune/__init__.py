"""Find the fastest graph variant and execution settings on this machine."""
