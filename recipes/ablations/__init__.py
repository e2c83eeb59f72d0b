"""Ablations of the paper, at small scale. See `python -m recipes.ablations --help`."""
