"""Model directories: manifest, files, graphs of each engine, providers, machines."""
