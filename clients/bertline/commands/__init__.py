"""What the command `bertline` can do, one function for each of its commands."""
