"""Families that Bertline does not write itself: transformers' networks, exported with Optimum."""
