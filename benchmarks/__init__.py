"""One script per claim."""
