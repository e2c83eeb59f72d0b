"""Distillation: outputs of teachers on disk, students of each kind, and their runs."""
