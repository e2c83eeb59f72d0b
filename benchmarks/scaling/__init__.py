"""How cost grows with models, texts, connections, processes, rows, corpora and lengths. See `__main__`."""
