"""Raw text -> vocabulary -> corpus -> pretraining -> fine-tuning -> evaluation, in PyTorch."""
