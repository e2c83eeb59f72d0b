"""Commands of `bertline`, and their options."""
