"""Checkpoints: read, write, task card, weights, hub, sentence-transformers folders, tokenizers."""
