"""bertline-mini: how the models that this repository ships were made, and what they score. `make models` runs it."""
