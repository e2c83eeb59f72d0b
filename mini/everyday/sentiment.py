"""Sentiment of self-written sentences."""

from __future__ import annotations

from pathlib import Path

from bertline import Client
from training.data.columns import Columns
from training.data.examples import Examples
from training.data.table_examples import read_classification

FILE = Path(__file__).with_name("sentiment.tsv")


def read_sentiment() -> Examples:
    """Read the sentences."""
    return read_classification(FILE, Columns())


def sentiment_scores(client: Client, model: str) -> dict[str, float]:
    """Return the number of sentences whose sentiment a served model finds, and the number of all."""
    examples = read_sentiment()
    results = client.classify([example.text for example in examples], model=model)
    correct = sum(result.label == example.label for result, example in zip(results, examples, strict=True))
    return {"correct": correct, "of": len(examples)}
