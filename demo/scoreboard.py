"""The demo's models scored four ways: PyTorch, ONNX fp32, ONNX int8, and both of these served over gRPC.

One set of examples, one set of metrics. Predictions over gRPC come through the client, as an application gets them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertline import Client
from export import ort_run
from tasks.batching import predict
from tasks.manifest import read_model_directory
from tasks.metrics import classification_scores, squad_scores
from training.baselines import baseline
from training.checkpoint import load_model
from training.data import Columns, read_classification, read_cloze, read_spans
from training.evaluate import torch_run
from training.progress import Progress

WAYS = ("PyTorch", "ONNX fp32", "ONNX int8", "gRPC fp32", "gRPC int8")
NUM_CLOZE = 300


class Scoreboard:
    """Scores of the models under `out`, and of the server at `target`."""

    def __init__(self, out: Path, target: str) -> None:
        self.out = out
        self.client = Client(target, timeout=120)
        data = out / "data"
        self.examples: dict[str, list[Any]] = {
            "library": read_classification(data / "classification/dev.jsonl", Columns()),
            "answer": read_spans(data / "spans/dev.json"),
        }
        self.train: dict[str, list[Any]] = {
            "library": read_classification(data / "classification/train.jsonl", Columns()),
            "answer": read_spans(data / "spans/train.json"),
        }
        tokenizer = read_model_directory(self.model_dir("fill-mask", "int8")).load_task().tokenizer
        self.examples["fill-mask"] = read_cloze(data / "corpus/dev.txt", tokenizer, max_examples=NUM_CLOZE)
        self.train["fill-mask"] = read_cloze(data / "corpus/train.txt", tokenizer, max_examples=5000)
        self.examples["embed"] = [example.text for example in self.examples["library"]]
        self.tokenizer = tokenizer

    def model_dir(self, name: str, precision: str) -> Path:
        """Model directory of the demo."""
        return self.out / "models" / (name if precision == "int8" else f"{name}-{precision}") / "1"

    def predictions(self, name: str, way: str) -> tuple[Any, float]:
        """Predictions of one model one way, and the seconds they took."""
        engine, _, precision = way.partition(" ")
        examples = self.examples[name]
        if engine == "gRPC":
            model = name if precision == "int8" else f"{name}-fp32"
            return _timed(lambda: _ASK[name](self.client, model, examples))
        directory = read_model_directory(self.model_dir(name, precision or "fp32"))
        task = directory.load_task()
        if engine == "PyTorch":
            checkpoint = self.out / "runs" / ("pretrain" if name in ("embed", "fill-mask") else name) / "checkpoint"
            run = torch_run(load_model(checkpoint, task.name))
        else:
            run = ort_run(directory.model_path, disabled_optimizers=directory.manifest.execution.disabled_optimizers)
        found, seconds = _timed(lambda: predict(task, examples, run, max_batch_tokens=512, chunk_size=32))
        if name == "fill-mask":
            return task.score(examples, found), seconds
        convert = {"library": lambda p: p.label, "answer": lambda p: p.text, "embed": lambda p: p}[name]
        return [convert(prediction) for prediction in found], seconds

    def scores(self, name: str, predictions: Any) -> dict[str, float]:
        """Scores of predictions."""
        examples = self.examples[name]
        if name == "library":
            return classification_scores([example.label for example in examples], predictions)
        if name == "answer":
            return squad_scores(predictions, [example.answers for example in examples])
        return dict(predictions)

    def table(self) -> str:
        """The table of all scores, with sizes and times, in Markdown."""
        found: dict[tuple[str, str], tuple[Any, float]] = {}
        with Progress("score", unit="model", total=len(WAYS) * len(self.examples)) as bar:
            for name in self.examples:
                for way in WAYS:
                    found[name, way] = self.predictions(name, way)
                    bar.update(1, f"{name}, {way}")
        rows = []
        for name, title in (("fill-mask", "masked LM"), ("library", "library"), ("answer", "answer")):
            by_way = {way: self.scores(name, found[name, way][0]) for way in WAYS}
            task = {"fill-mask": "masked-lm", "library": "classification", "answer": "spans"}[name]
            label, base = baseline(task, self.train[name], self.examples[name], self.tokenizer)
            for metric in base:
                cells = [_number(metric, by_way[way][metric]) for way in WAYS]
                rows.append(
                    [f"{title}: {metric.replace('_', ' ')}", f"{_number(metric, base[metric])} ({label})", *cells]
                )
        reference = np.stack(found["embed", "PyTorch"][0])
        cosines = [_mean_cosine(reference, np.stack(found["embed", way][0])) for way in WAYS]
        rows.append(["[CLS] vector: mean cosine to PyTorch", "", *(f"{cosine:.4f}" for cosine in cosines)])
        for name in self.examples:
            rates = [f"{len(self.examples[name]) / found[name, way][1]:,.0f}" for way in WAYS]
            rows.append([f"{name}: examples/s", "", *rates])
        sizes = [self._megabytes(way) for way in WAYS]
        rows.append(["size of `answer` (MB)", "", *(f"{size:.1f}" for size in sizes)])
        header = ["", "baseline", *WAYS]
        return _markdown([header, *rows])

    def samples(self) -> str:
        """A few questions with the answers that the server gives."""
        chosen = self.examples["answer"][:: max(1, len(self.examples["answer"]) // 3)][:3]
        answers = self.client.answer([(e.question, e.context) for e in chosen], model="answer")
        lines = []
        for example, answer in zip(chosen, answers, strict=True):
            lines += [f"question: {example.question}", f"  served: {answer.text!r}   right: {example.answers[0]!r}"]
        text = self.examples["library"][0].text
        label = self.client.classify([text], model="library")[0]
        lines += [f"docstring: {text[:90]}...", f"  served: {label.label} ({label.score:.2f})"]
        return "\n".join(lines)

    def _megabytes(self, way: str) -> float:
        if way == "PyTorch":
            return (self.out / "runs/answer/checkpoint/model.safetensors").stat().st_size / 1e6
        return (self.model_dir("answer", way.split()[1]) / "model.onnx").stat().st_size / 1e6


def _ask_fill_mask(client: Client, model: str, examples: Sequence[Any]) -> dict[str, float]:
    losses, hits = [], []
    for example in examples:
        fills = client.fill_mask([example.text], model=model, top_k=1, targets=example.tokens, truncate=True)[0]
        for number, (fill, token) in enumerate(zip(fills, example.tokens, strict=False)):
            losses.append(-np.log(max(fill.targets[number].score, 1e-30)))
            hits.append(fill.tokens[0].token == token)
    return {"loss": float(np.mean(losses)), "accuracy": float(np.mean(hits))}


_ASK: dict[str, Callable[[Client, str, Sequence[Any]], Any]] = {
    "fill-mask": _ask_fill_mask,
    "library": lambda client, model, examples: [
        result.label for result in client.classify([e.text for e in examples], model=model, truncate=True)
    ],
    "answer": lambda client, model, examples: [
        result.text for result in client.answer([(e.question, e.context) for e in examples], model=model, truncate=True)
    ],
    "embed": lambda client, model, examples: list(client.embed(examples, model=model, truncate=True)),
}
"""How to get predictions of each model through the client."""


def _timed(call: Callable[[], Any]) -> tuple[Any, float]:
    start = time.monotonic()
    return call(), time.monotonic() - start


def _mean_cosine(one: np.ndarray, two: np.ndarray) -> float:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    return float(((one * two).sum(axis=1) / norms).mean())


def _number(metric: str, value: float) -> str:
    return f"{value:.3f}" if metric == "loss" else f"{100 * value:.1f}"


def _markdown(rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        others = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("| " + " | ".join([row[0].ljust(widths[0]), *others]) + " |")
    rule = "|" + "|".join("-" * (width + 1) + (":" if number else "-") for number, width in enumerate(widths)) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
