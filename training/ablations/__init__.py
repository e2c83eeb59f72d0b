"""The paper's ablations at small scale. See `python -m training.ablations --help`."""
