"""Scores of the demo's models in five runtimes: PyTorch, ONNX fp32, ONNX int8, and both ONNX graphs over gRPC.

All use the same examples and metrics. Predictions over gRPC come from the public client.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bertline import Client
from recipes.predictions import Predict, local_runtimes, num_same, score_predictions, served_predictions
from tasks.bundle.model_directory import read_model_directory
from training.checkpoint.evaluation import torch_run
from training.checkpoint.reader import load_model
from training.command_line.progress_bar import ProgressBar
from training.data.cloze import read_cloze
from training.data.columns import Columns
from training.data.squad import read_spans
from training.data.table_examples import read_classification
from training.objectives.registry import best_baseline
from training.reports.tables import markdown_table


@dataclass(frozen=True, slots=True)
class DemoModel:
    """Model that the demo serves in fp32 and int8."""

    run: str
    """Run directory of its checkpoint."""
    task: str
    title: str


MODELS = {
    "embed": DemoModel("pretrain", "embedding", "[CLS] vector"),
    "fill-mask": DemoModel("pretrain", "masked-lm", "masked LM"),
    "library": DemoModel("library", "classification", "library"),
    "answer": DemoModel("answer", "spans", "answer"),
}
RUNTIMES = ("PyTorch", "ONNX fp32", "ONNX int8", "gRPC fp32", "gRPC int8")
NUM_CLOZE = 300


def served_name(name: str, precision: str) -> str:
    """Return the served name of a model; int8 has no suffix."""
    return name if precision == "int8" else f"{name}-{precision}"


class Scoreboard:
    """Scores the models in `out` and those of the server at `target`."""

    def __init__(self, out: Path, target: str) -> None:
        self.out = out
        self.client = Client(target, timeout=120)
        data = out / "data"
        self.tokenizer = read_model_directory(self.model_dir("fill-mask", "int8")).load_task().tokenizer

        def read(split: str, num_cloze: int) -> dict[str, list[Any]]:
            return {
                "library": read_classification(data / f"classification/{split}.jsonl", Columns()),
                "answer": read_spans(data / f"spans/{split}.json"),
                "fill-mask": read_cloze(data / f"corpus/{split}.txt", self.tokenizer, max_examples=num_cloze),
            }

        self.train, self.examples = read("train", 5000), read("dev", NUM_CLOZE)
        self.examples["embed"] = [example.text for example in self.examples["library"]]

    def model_dir(self, name: str, precision: str) -> Path:
        """Return a model directory of the demo."""
        return self.out / "models" / served_name(name, precision) / "1"

    def runtimes(self, name: str) -> dict[str, Predict]:
        """Return the functions that predict with one model, by runtime."""
        model, fp32, int8 = MODELS[name], self.model_dir(name, "fp32"), self.model_dir(name, "int8")
        task = read_model_directory(fp32).load_task()
        network = torch_run(load_model(self.out / "runs" / model.run / "checkpoint", task.name), task)
        found = local_runtimes(network, fp32, int8, chunk_size=32)
        for precision in ("fp32", "int8"):
            served = partial(served_predictions, self.client, model.task, served_name(name, precision))
            found[f"gRPC {precision}"] = served
        return found

    def table(self) -> str:
        """Return the table of scores, sizes and speeds in Markdown."""
        predictions: dict[str, dict[str, list[Any]]] = {name: {} for name in self.examples}
        seconds: dict[str, dict[str, float]] = {name: {} for name in self.examples}
        with ProgressBar("score", unit="model", total=len(RUNTIMES) * len(self.examples)) as bar:
            for name, examples in self.examples.items():
                for runtime, predict in self.runtimes(name).items():
                    start = time.monotonic()
                    predictions[name][runtime] = predict(examples)
                    seconds[name][runtime] = time.monotonic() - start
                    bar.note(f"{name}, {runtime}")
                    bar.update(1)
        rows = [["", "baseline", *RUNTIMES]]
        for name in ("fill-mask", "library", "answer"):
            rows += self._score_rows(name, predictions[name])
        for name in ("library", "answer"):
            reference = predictions[name]["PyTorch"]
            counts = [num_same(reference, predictions[name][runtime]) for runtime in RUNTIMES]
            rows.append([f"{MODELS[name].title}: same as PyTorch, of {len(reference)}", "", *map(str, counts)])
        vectors = {runtime: np.stack(values) for runtime, values in predictions["embed"].items()}
        cosines = [_mean_cosine(vectors["PyTorch"], vectors[runtime]) for runtime in RUNTIMES]
        rows.append(["[CLS] vector: mean cosine to PyTorch", "", *(f"{cosine:.4f}" for cosine in cosines)])
        for name, examples in self.examples.items():
            rates = [f"{len(examples) / seconds[name][runtime]:,.0f}" for runtime in RUNTIMES]
            rows.append([f"{MODELS[name].title}: examples/s", "", *rates])
        rows.append(["size of `answer` (MB)", "", *(f"{self._megabytes(runtime):.1f}" for runtime in RUNTIMES)])
        return markdown_table(rows)

    def samples(self) -> str:
        """Return a few questions with the server's answers."""
        chosen = self.examples["answer"][:: max(1, len(self.examples["answer"]) // 3)][:3]
        answers = self.client.answer([(e.question, e.context) for e in chosen], model="answer")
        lines = []
        for example, answer in zip(chosen, answers, strict=True):
            lines += [f"question: {example.question}", f"  served: {answer.text!r}   expected: {example.answers[0]!r}"]
        text = self.examples["library"][0].text
        label = self.client.classify([text], model="library")[0]
        lines += [f"docstring: {text[:90]}...", f"  served: {label.label} ({label.score:.2f})"]
        return "\n".join(lines)

    def _score_rows(self, name: str, predictions: dict[str, list[Any]]) -> list[list[str]]:
        task, examples = MODELS[name].task, self.examples[name]
        by_runtime = [score_predictions(task, examples, predictions[runtime]) for runtime in RUNTIMES]
        label, base = best_baseline(task, self.train[name], examples, self.tokenizer)
        rows = []
        for metric in base:
            title = f"{MODELS[name].title}: {metric.replace('_', ' ')}"
            cells = [_number(metric, scores[metric]) for scores in by_runtime]
            rows.append([title, f"{_number(metric, base[metric])} ({label})", *cells])
        return rows

    def _megabytes(self, runtime: str) -> float:
        if runtime == "PyTorch":
            return (self.out / "runs/answer/checkpoint/model.safetensors").stat().st_size / 1e6
        return (self.model_dir("answer", runtime.split()[1]) / "model.onnx").stat().st_size / 1e6


def _mean_cosine(one: np.ndarray, two: np.ndarray) -> float:
    norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
    return float(((one * two).sum(axis=1) / norms).mean())


def _number(metric: str, value: float) -> str:
    return f"{value:.3f}" if metric == "loss" else f"{100 * value:.1f}"
