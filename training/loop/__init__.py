"""The training loop and all that it keeps and reports."""
