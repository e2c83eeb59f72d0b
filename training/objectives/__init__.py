"""Objectives: targets and losses of pretraining, contrastive training and each task; a file each."""
