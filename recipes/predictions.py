"""Predictions as plain values, to compare checkpoints, graphs and servers.

Label (classification), answer text (spans), tags (tagging), number (multiple choice, regression), vector (embedding),
and a pair (loss, hit) for every mask (masked-lm).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertline import Client
from export import graph_run
from tasks import AnyTask
from tasks.batching import RunModel, predict
from tasks.bundle.model_directory import read_model_directory
from tasks.metrics import accuracy, classification_scores, regression_scores, tagging_scores
from tasks.spans import answer_scores

Predict = Callable[[Sequence[Any]], list[Any]]
"""Function from examples to plain values."""


def _plain_values(task: AnyTask, example: Any, prediction: Any) -> list[Any]:
    """Return the value of one prediction, or one value for every mask."""
    if task.name == "masked-lm":
        ids = [task.tokenizer.token_id(token) for token in example.tokens]
        return [(-float(row[i]), row.argmax() == i) for row, i in zip(prediction.log_probs, ids, strict=False)]
    field = {"classification": "label", "spans": "text", "tagging": "tags", "multiple-choice": "choice"}.get(task.name)
    return [getattr(prediction, field) if field else prediction]


def local_runtimes(checkpoint: RunModel, fp32: Path, int8: Path, *, chunk_size: int) -> dict[str, Predict]:
    """Return functions that predict in this process, by runtime: PyTorch, ONNX fp32 and ONNX int8.

    Args:
        checkpoint: network of the checkpoint.
        fp32, int8: model directories.
        chunk_size: number of examples to predict together.
    """
    directories = {"ONNX fp32": read_model_directory(fp32), "ONNX int8": read_model_directory(int8)}
    runs = {"PyTorch": (directories["ONNX int8"].load_task(), checkpoint)}
    for name, directory in directories.items():
        runs[name] = directory.load_task(), graph_run(directory.model_path, execution=directory.manifest.execution)
    return {name: partial(_predict, task, run, chunk_size) for name, (task, run) in runs.items()}


def _predict(task: AnyTask, run: RunModel, chunk_size: int, examples: Sequence[Any]) -> list[Any]:
    found = predict(task, examples, run, max_batch_tokens=512, chunk_size=chunk_size)
    return [value for pair in zip(examples, found, strict=True) for value in _plain_values(task, *pair)]


def served_predictions(client: Client, task: str, model: str, examples: Sequence[Any]) -> list[Any]:
    """Return predictions of a server; examples of embeddings are texts."""
    if task == "classification":
        return [result.label for result in client.classify(_texts(examples), model=model, truncate=True)]
    if task == "regression":
        return client.regress(_texts(examples), model=model, truncate=True)
    if task == "spans":
        questions = [(example.question, example.context) for example in examples]
        return [result.text for result in client.answer(questions, model=model, truncate=True)]
    if task == "tagging":
        found = client.tag([example.words for example in examples], model=model, return_words=True, truncate=True)
        return [tuple(word.tag for word in tagging.words) for tagging in found]
    if task == "multiple-choice":
        asked = [(example.context, example.question, example.choices) for example in examples]
        return [result.choice for result in client.choose(asked, model=model, truncate=True)]
    if task == "masked-lm":
        return [pair for example in examples for pair in _fill(client, model, example)]
    return list(client.embed(examples, model=model, truncate=True))


def _texts(examples: Sequence[Any]) -> list[str | tuple[str, str]]:
    return [e.text if e.text_pair is None else (e.text, e.text_pair) for e in examples]


def _fill(client: Client, model: str, example: Any) -> list[tuple[float, bool]]:
    """Return the negative log-probability of each masked token, and whether it ranks first."""
    fills = client.fill_mask([example.text], model=model, top_k=1, targets=example.tokens, truncate=True)[0]
    return [
        (-float(np.log(max(fill.targets[number].score, 1e-30))), fill.tokens[0].token == token)
        for number, (fill, token) in enumerate(zip(fills, example.tokens, strict=True))
    ]


def num_same(ours: Sequence[Any], others: Sequence[Any]) -> int:
    """Return the number of equal predictions."""
    return sum(one == other for one, other in zip(ours, others, strict=True))


def score_predictions(task: str, examples: Sequence[Any], predictions: Sequence[Any]) -> dict[str, float]:
    """Score plain values like `Task.score`."""
    if task == "masked-lm":
        losses, hits = zip(*predictions, strict=True)
        return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(hits))}
    if task == "spans":
        return answer_scores(examples, predictions)
    if task == "tagging":
        return tagging_scores([example.tags for example in examples], predictions)
    labels = [example.label for example in examples]
    if task == "regression":
        return regression_scores(labels, predictions)
    if task == "multiple-choice":
        return {"accuracy": accuracy(labels, predictions)}
    return classification_scores(labels, predictions, sorted(set(labels)))
