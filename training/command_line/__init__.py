"""Command lines: recipes as flags, bounds of numbers, progress bars, processes."""
