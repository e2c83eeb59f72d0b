"""Load on a server, and what comes of it: the command `bertline bench`."""
