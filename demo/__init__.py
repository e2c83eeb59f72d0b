"""The whole line on Python's own documentation: data, training, export, serving, questions. `make demo` runs it."""
