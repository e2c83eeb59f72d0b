"""Input files -> blocks of rows -> chunks."""
