"""Demo of all stages on Python's own documentation: data, training, export, serving. `make demo` runs it."""
