"""Predictions of a checkpoint for some examples, for `training.report`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasks import AnyTask
from tasks.embedding import Embedding
from tasks.masked_lm import ClozeExample
from training.checkpoint.evaluation import load_for_evaluation, predict_with_progress
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import has_weights
from training.data.cloze import cloze_examples
from training.data.columns import dev_columns, existing_columns
from training.data.examples import Examples, encode_examples, hold_out
from training.data.sources import is_hub, source_digest, source_names
from training.objectives.labelled import read_examples, read_similarities
from training.objectives.similarity import cosines
from training.reports.page import Table
from training.reports.sample_views import sample_table
from training.text.corpus import Corpus

NUM_PREDICTED = {"masked-lm": 8, "classification": 500, "regression": 500, "spans": 40}
"""Number of random examples to predict; 20 for other tasks."""
MAX_PASSAGE_TOKENS = 48


def sample_predictions(run: Path, recipe: Mapping[str, Any], data: Sequence[Path] = ()) -> tuple[str, Table | None]:
    """Predict some examples with a run's checkpoint.

    Args:
        recipe: the run's recipe.json.
        data: files with examples; by default, the dev data of the recipe if it still exists.

    Returns:
        A sentence about the examples, or why there are none, and a table of some.

    Raises:
        ValueError: if `data` cannot be used, or the checkpoint is broken.
    """
    checkpoint = run / "checkpoint"
    if not checkpoint.is_dir():
        return "None yet: the run is not finished and has no checkpoint.", None
    if not has_weights(checkpoint):
        return "None: the checkpoint has no weights; a grid keeps only those of its best run.", None
    task, model = load_for_evaluation(checkpoint)
    examples, source = _examples(task, checkpoint, recipe, data)
    if not examples:
        return source, None
    if isinstance(task, Embedding):
        predictions = cosines(examples, lambda texts: predict_with_progress(task, texts, model))
    else:
        predictions = predict_with_progress(task, examples, model)
    table, how_many = sample_table(task, examples, predictions)
    return f"{how_many} {source}", table


def _examples(
    task: AnyTask, checkpoint: Path, recipe: Mapping[str, Any], data: Sequence[Path]
) -> tuple[list[Any], str]:
    """Return examples and a sentence about their source; without examples, about the reason."""
    if data:
        return _read(task, data, recipe), f"From {', '.join(source_names(data))}."
    try:
        if task.name == "masked-lm":
            return _from_corpus(task, recipe)
        paths = [Path(path) for path in recipe.get("train" if recipe.get("dev_fraction") else "dev", ())]
        if not paths:
            return [], "None: the run had no dev data; give examples with --data FILE."
        if gone := [path for path in paths if not (is_hub(path) or path.is_file())]:
            return (
                [],
                f"None: {', '.join(source_names(gone))} no longer exists ({gone[0]}); give examples with --data FILE.",
            )
        changed = _changed(checkpoint, recipe, paths)
        return _read(task, paths, recipe), f"From {', '.join(source_names(paths))}, dev data of the run.{changed}"
    except ValueError as error:
        return [], f"None: {error}"


def _read(task: AnyTask, paths: Sequence[Path], recipe: Mapping[str, Any]) -> Examples:
    """Read a random sample of examples."""
    columns, count = existing_columns(paths, dev_columns(recipe)), NUM_PREDICTED.get(task.name, 20)
    if isinstance(task, Embedding):
        return read_similarities(paths, columns=columns, tokenizer=task.tokenizer).sample(count)
    passage_tokens = _passage_tokens(task)
    read = read_examples(task.name, paths, columns=columns, tokenizer=task.tokenizer, max_passage_tokens=passage_tokens)
    if (fraction := recipe.get("dev_fraction")) and paths == [Path(path) for path in recipe["train"]]:
        read = hold_out(read, fraction)[1]
    examples = read.sample(count)
    encode_examples(task, examples)
    return examples


def _changed(checkpoint: Path, recipe: Mapping[str, Any], paths: Sequence[Path]) -> str:
    """Return a warning if dev data has changed since the run."""
    card = read_task_card(checkpoint)
    digests = card.provenance.get("data", {}) if card else {}
    data = [*map(Path, recipe.get("train", ())), *paths]
    names = dict(zip(data, source_names(data), strict=True))
    known = [path for path in paths if names[path] in digests]
    changed = ", ".join(names[path] for path in known if digests[names[path]] != source_digest(path))
    return f" But {changed} has changed since the run." if changed else ""


def _from_corpus(task: AnyTask, recipe: Mapping[str, Any]) -> tuple[list[ClozeExample], str]:
    for key, what in (("dev_corpus", "the held-out corpus"), ("corpus", "the corpus it was trained on")):
        path = Path(recipe.get(key) or "")
        if recipe.get(key) and path.is_dir():
            passages = corpus_passages(Corpus(path), _passage_tokens(task), NUM_PREDICTED["masked-lm"])
            return list(
                cloze_examples(passages, task.tokenizer)
            ), f"From {path.name}, {what}; its text is decoded from token ids."
    return [], "None: the corpora of the recipe no longer exist; give running text with --data FILE."


def _passage_tokens(task: AnyTask) -> int:
    return min(MAX_PASSAGE_TOKENS, task.settings.max_seq_length - 2)


def corpus_passages(corpus: Corpus, max_tokens: int, count: int) -> Iterator[str]:
    """Yield passages of up to `count` random documents: the whole sentences that fit, decoded from ids."""
    rng = np.random.default_rng(0)
    found = 0
    for document in rng.permutation(corpus.num_documents)[: 20 * count]:
        ends = corpus.sentence_ends(int(document))
        first = int(rng.integers(len(ends) - 1))
        sizes = ends[first + 1 :] - ends[first]
        last = first + int(np.searchsorted(sizes, max_tokens, side="right"))
        if last > first and sizes[last - first - 1] >= max_tokens // 3:
            ids = corpus.tokens(int(document), first, last)
            text = corpus.tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False)
            yield re.sub(r"(\w) ' (s|t|re|ve|ll|d|m)\b", r"\1'\2", text)
            found += 1
        if found == count:
            return
