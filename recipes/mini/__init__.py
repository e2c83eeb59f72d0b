"""Commands that make and score the models in this repository. `make models` runs them."""
