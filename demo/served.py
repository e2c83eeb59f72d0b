"""What a served model predicts for labelled examples, asked through the client, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bertline import Client
from tasks.metrics import classification_scores, squad_scores


def served_predictions(client: Client, task: str, model: str, examples: Sequence[Any]) -> list[Any]:
    """Labels for classification, answer texts for spans, pairs (loss, hit) of every mask for masked-lm, vectors."""
    if task == "classification":
        inputs = [e.text if e.text_pair is None else (e.text, e.text_pair) for e in examples]
        return [result.label for result in client.classify(inputs, model=model, truncate=True)]
    if task == "spans":
        questions = [(example.question, example.context) for example in examples]
        return [result.text for result in client.answer(questions, model=model, truncate=True)]
    if task == "masked-lm":
        return [pair for example in examples for pair in _fill(client, model, example)]
    return list(client.embed(examples, model=model, truncate=True))


def _fill(client: Client, model: str, example: Any) -> list[tuple[float, bool]]:
    """Negative log-probability of each hidden token, and whether it is the likeliest."""
    fills = client.fill_mask([example.text], model=model, top_k=1, targets=example.tokens, truncate=True)[0]
    return [
        (-float(np.log(max(fill.targets[number].score, 1e-30))), fill.tokens[0].token == token)
        for number, (fill, token) in enumerate(zip(fills, example.tokens, strict=True))
    ]


def score_predictions(task: str, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """The scores that `Task.score` gives, of predictions as `served_predictions` gives them."""
    if task == "classification":
        labels = [example.label for example in examples]
        return classification_scores(labels, predictions, sorted(set(labels)))
    if task == "spans":
        return squad_scores(predictions, [example.answers for example in examples])
    losses, hits = zip(*predictions, strict=True)
    return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(hits))}
