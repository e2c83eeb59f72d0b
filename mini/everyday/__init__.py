"""Self-written texts, unlike those of the data sets, to see if a model is useful on them; and their scores.

sentiment.tsv   40 negations, contrasts and everyday sentences, with their sentiment
names.txt       60 sentences with 150 names, marked as in `[PER Marie Curie] worked in [LOC Paris].`
"""

from mini.everyday.names import MarkedText, name_scores, parse_marks, read_names
from mini.everyday.sentiment import read_sentiment, sentiment_scores

__all__ = ["MarkedText", "name_scores", "parse_marks", "read_names", "read_sentiment", "sentiment_scores"]
