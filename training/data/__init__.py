"""Labelled data and tables, and the batches that training sees."""
