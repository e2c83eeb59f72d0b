"""Load test of a server: the command `bertline bench`."""
