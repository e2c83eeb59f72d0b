"""Input files -> rows -> blocks -> chunks."""
