"""The paper's comparisons, in small: what each part of BERT is worth. `python -m training.ablations --help`."""
