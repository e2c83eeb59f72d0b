"""One command for whoever has a GPU: graphs, memory, server and pretraining on it. See `__main__`."""
