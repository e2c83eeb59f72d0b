"""Labelled data, tables, pretraining examples, and batches."""
