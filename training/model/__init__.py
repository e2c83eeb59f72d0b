"""BERT, and what makes it quick."""
