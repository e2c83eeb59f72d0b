"""Ablations of the paper, at small scale. See `python -m training.ablations --help`."""
