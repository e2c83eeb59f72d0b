"""Data of an export: examples to evaluate graphs on, sequences to calibrate and to time them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from export.autotune.workload import Workload, typical_lengths
from tasks import AnyTask
from tasks.embedding import Embedding, EmbeddingSettings
from tasks.features import Features
from tasks.metrics import is_loss
from tasks.regression import Regression
from training.checkpoint.task_card import TaskCard
from training.command_line.bounds import COUNT, check_numbers
from training.data.cloze import MAX_PASSAGE_TOKENS
from training.data.columns import Columns, dev_columns, existing_columns
from training.data.examples import Examples, encode_examples, hold_out, sample_indices
from training.data.input_warnings import is_truncated
from training.data.plausibility import report_doubts
from training.data.sources import source_digest, source_names
from training.data.table_examples import read_texts
from training.objectives.labelled import read_examples, read_similarities
from training.objectives.registry import check_kind, check_labels
from training.objectives.similarity import compares_pairs, evaluate_pairs

Score = Callable[[Sequence[Any]], dict[str, float]]
"""Function of predictions that returns scores by name, official metrics first."""

_NUM_RANDOM = 64
_MAX_RANDOM_LENGTH = 64
_NUM_TIMED = 400
"""Number of sequences to time graphs on."""
MIN_SPLIT_TEXTS = 40
"""Minimum number of texts to calibrate and evaluate on different ones."""


@dataclass(frozen=True)
class EvaluationSet:
    """Examples to run a network on, with the function that scores its predictions."""

    name: str
    """Short description of the examples, for people."""
    task: AnyTask
    examples: Sequence[Any]
    locations: Sequence[str]
    """File and line of each example."""
    windows: Sequence[Sequence[Features]]
    """Encoded sequences of each example."""
    score: Score | None
    """None if there are no labels."""

    @property
    def features(self) -> list[Features]:
        """Encoded sequences of all examples."""
        return [features for windows in self.windows for features in windows]

    @property
    def num_truncated(self) -> int:
        """Number of examples that lost tokens because they were too long."""
        return sum(map(is_truncated, self.windows))

    def with_metric(self, metric: str) -> EvaluationSet:
        """Return the same set with one of its scores first, so that the quality gate uses it.

        Raises:
            ValueError: when scoring, if no score has this name.
        """
        score = self.score
        assert score

        def metric_first(predictions: Sequence[Any]) -> dict[str, float]:
            scores = score(predictions)
            if metric not in scores or is_loss(metric):
                known = ", ".join(name for name in scores if not is_loss(name))
                raise ValueError(f"unknown --metric `{metric}` (one of: {known})")
            return {metric: scores[metric]} | scores

        return replace(self, score=metric_first)

    def select(self, indices: Sequence[int], **changes: Any) -> EvaluationSet:
        """Return some of the examples."""
        parts = {
            name: [getattr(self, name)[index] for index in indices] for name in ("examples", "locations", "windows")
        }
        return replace(self, **parts | changes)

    def sample(self, count: int) -> EvaluationSet:
        """Return at most `count` examples, drawn at random, without scores."""
        return self.select(sample_indices(len(self.examples), count), score=None)


@dataclass(frozen=True, kw_only=True)
class ExportData:
    """Files with examples. Unset files default to those of the checkpoint's training, if they still exist."""

    dev: tuple[Path, ...] = ()
    """Labelled data to score on, as `--dev` of training.finetune; for embedding, sparse-embedding and token-embedding,
    pairs of texts with similarities. Default: the dev data of the checkpoint's training."""
    train: tuple[Path, ...] = ()
    """Training data to calibrate static int8 on. Default: those of the checkpoint."""
    columns: tyro.conf.Suppress[Columns] = field(default_factory=Columns)
    """Columns of all files."""
    dev_fraction: tyro.conf.Suppress[float] = 0.0
    """Fraction of `dev` that the training held out, if that is its training data."""
    dev_columns: tyro.conf.Suppress[Columns | None] = None
    """Columns of dev data taken from the training; None for `columns`."""
    train_columns: tyro.conf.Suppress[Columns | None] = None
    """Columns of training data taken from the training; None for `columns`."""
    texts: Path | None = None
    """Texts without labels, one a line, or a table. Nothing is scored; vectors or logits are compared with PyTorch's.
    For int8, give some hundred: up to half of them calibrate, the others evaluate."""
    max_examples: Annotated[int, COUNT] = 1000
    """Largest number of examples to score; for masked-lm, of those from the first 1,000 passages of each file."""
    metric: str | None = None
    """Score on dev that must not drop, such as matthews. Default: the task's first score."""
    num_calibration: Annotated[int, COUNT] = 256
    """Largest number of examples to calibrate on."""

    def check(self) -> None:
        """Raise if flags are invalid or contradict each other.

        Raises:
            ValueError: naming the flags.
        """
        check_numbers(self)
        if self.texts and (self.dev or self.train):
            raise ValueError("--texts conflicts with --dev and --train; give one or the other")
        if self.texts and self.metric:
            raise ValueError("--metric needs --dev, as --texts are not scored; leave it out")

    @property
    def files(self) -> tuple[Path, ...]:
        """All given files."""
        return (*self.dev, *self.train, *((self.texts,) if self.texts else ()))

    def with_defaults(self, card: TaskCard | None, task: AnyTask) -> ExportData:
        """Fill in `dev` and `train`, with their columns, from the checkpoint's training for the task."""
        data, recipe = self, self._recipe(card, task)
        if recipe and not self.train:
            columns = dev_columns({"columns": recipe.get("columns", {})})
            data = replace(data, train=_existing(recipe.get("train", ())), train_columns=columns)
        if recipe and not self.dev:
            fraction = recipe.get("dev_fraction", 0.0)
            dev = _existing(recipe.get("train" if fraction else "dev", ()))
            columns = existing_columns(dev, dev_columns(recipe))
            data = replace(data, dev=dev, dev_columns=columns, dev_fraction=fraction)
        return data

    def missing_defaults(self, card: TaskCard | None, task: AnyTask) -> list[str]:
        """Return the data of the checkpoint's training that would be used but are missing, or only on the hub."""
        recipe = {} if self.dev else self._recipe(card, task)
        wanted = [*recipe.get("dev", ()), *(() if self.train else recipe.get("train", ()))]
        return [name for name in wanted if not Path(name).is_file()]

    def _recipe(self, card: TaskCard | None, task: AnyTask) -> Mapping[str, Any]:
        """Return the recipe of the training for the task; empty if there is none, or if texts replace its data."""
        if self.texts or not card or card.task != task.name:
            return {}
        recipe: Mapping[str, Any] = card.provenance.get("recipe", {})
        return recipe

    def evaluation_set(self, task: AnyTask) -> EvaluationSet:
        """Return the labelled data, else the texts, else random ids.

        Raises:
            ValueError: naming the file and line of invalid data.
        """
        if self.dev:
            columns, size = self.dev_columns or self.columns, self.max_examples
            found = labelled(task, self.dev, columns, max_examples=size, held_out=self.dev_fraction)
            return found.with_metric(self.metric) if self.metric else found
        if self.metric:
            raise ValueError(f"--metric `{self.metric}` needs scores: give --dev")
        if self.texts:
            examples = _read_all_texts((self.texts,), self.columns)
            return plain_texts(task, examples, (self.texts,), max_examples=self.max_examples)
        return random_ids(task)

    def part(self, task: AnyTask, evaluation_set: EvaluationSet, indices: Sequence[int], remark: str) -> EvaluationSet:
        """Return some labelled examples of an evaluation set, scored by a task with other settings.

        Args:
            remark: what the description adds to the number of examples and the files.
        """
        name = f"{len(indices):,} examples of {', '.join(source_names(self.dev))}, {remark}"
        found = evaluation_set.select(indices, name=name, task=task)
        found = replace(found, score=partial(task.score, found.examples))
        return found.with_metric(self.metric) if self.metric else found

    def with_calibration(self, task: AnyTask) -> tuple[EvaluationSet, list[Features], str]:
        """Return the evaluation set, the sequences to calibrate on, and a line about them for the user.

        Without training data or texts, there are no sequences. The line may be empty.

        Raises:
            ValueError: as `evaluation_set`.
        """
        if self.texts:
            return self._split_texts(self.texts, task)
        evaluation_set = self.evaluation_set(task)
        if self.train:
            return evaluation_set, self._training_features(task), f"calibrated on {', '.join(source_names(self.train))}"
        missing = "no --train" if self.dev else "neither --train nor --texts"
        return evaluation_set, [], f"{missing}: dynamic int8 only, outputs depend on the batch"

    def _split_texts(self, path: Path, task: AnyTask) -> tuple[EvaluationSet, list[Features], str]:
        """Calibrate and evaluate on different texts, if there are enough."""
        texts = _read_all_texts((path,), self.columns)
        if len(texts) < MIN_SPLIT_TEXTS:
            both = plain_texts(task, texts, (path,), max_examples=self.max_examples)
            remark = (
                f"{both.name} both calibrate and evaluate, which overrates int8; give some hundred, "
                f"at least {MIN_SPLIT_TEXTS}"
            )
            evaluation_set = replace(both, name=f"{both.name}, also used to calibrate")
            return evaluation_set, both.sample(self.num_calibration).features, remark
        first, others = _split(texts, min(self.num_calibration, len(texts) // 2))
        evaluation_set = plain_texts(task, others, (path,), max_examples=self.max_examples)
        features = plain_texts(task, first, (path,), max_examples=len(first)).features
        name = f"{evaluation_set.name}, calibrated on {len(first):,} others"
        return replace(evaluation_set, name=name), features, ""

    def _training_features(self, task: AnyTask) -> list[Features]:
        columns = self.columns
        if self.train_columns:
            columns = existing_columns(self.train, self.train_columns)
        if compares_pairs(task):
            texts = _read_all_texts(self.train, columns)
            return plain_texts(task, texts, self.train, max_examples=self.num_calibration).features
        held_out = self.dev_fraction if self.train == self.dev else 0.0
        return labelled(
            task, self.train, columns, max_examples=self.num_calibration, scored=False, held_out=held_out
        ).features

    def record(self, evaluation_set: EvaluationSet, calibrated_on: Sequence[Features]) -> dict[str, Any]:
        """Return the manifest's record of the data: descriptions, and SHA-256 of the files."""
        texts = (self.texts,) if self.texts else ()
        evaluated_on: dict[str, Any] = {"description": evaluation_set.name, "files": _digests(self.dev or texts)}
        if evaluation_set.num_truncated:
            evaluated_on["num_truncated"] = evaluation_set.num_truncated
        if all(getattr(example, "text_pair", None) for example in evaluation_set.examples):
            evaluated_on["text_pairs"] = True
        if not calibrated_on:
            return {"evaluated_on": evaluated_on}
        files = _digests(self.train or texts)
        description = f"{len(calibrated_on):,} sequences of {', '.join(files)}"
        return {"evaluated_on": evaluated_on, "calibrated_on": {"description": description, "files": files}}

    def workload(self, task: AnyTask, evaluation_set: EvaluationSet) -> Workload:
        """Return sequences to time graphs with. Lengths are those of the data, or typical ones without data."""
        if self.dev or self.texts:
            lengths = tuple(len(features) for features in evaluation_set.sample(_NUM_TIMED).features)
        else:
            lengths = typical_lengths(_NUM_TIMED, task.settings.max_seq_length)
        return Workload(lengths, task.tokenizer.vocab_size)


def labelled(
    task: AnyTask,
    paths: Sequence[Path],
    columns: Columns,
    *,
    max_examples: int,
    scored: bool = True,
    held_out: float = 0.0,
) -> EvaluationSet:
    """Read labelled data of the task; for embeddings of any kind, pairs of texts with similarities.

    Args:
        max_examples: largest number of examples, drawn at random.
        scored: True to score them, False to calibrate on them.
        held_out: fraction of them that the training held out; the others are to calibrate on.

    Raises:
        ValueError: naming the file and line of invalid data.
    """
    files = ", ".join(source_names(paths))
    if compares_pairs(task):
        available = read_similarities(paths, columns=columns, tokenizer=task.tokenizer)
        report_doubts(files, available)
        sampled = available.sample(max_examples)
        _check_labels_vary(sampled, files)
        found = evaluate_pairs(task, sampled)
        task, examples, score, kind = found.task, found.examples, found.score, "pairs"
    else:
        length = min(MAX_PASSAGE_TOKENS, task.tokenizer.single.capacity(task.settings.max_seq_length))
        available = read_examples(
            task.name, paths, columns=columns, tokenizer=task.tokenizer, max_passage_tokens=length
        )
        if held_out:
            available = hold_out(available, held_out)[1 if scored else 0]
        if scored:
            report_doubts(files, available)
        sampled = examples = available.sample(max_examples)
        check_kind(task, examples)
        try:
            check_labels(task, examples)
        except ValueError as error:
            raise ValueError(f"{error} (rename labels with --labels, in the order of the logits)") from error
        if scored and isinstance(task, Regression):
            _check_labels_vary(examples, files)
        score, kind = partial(task.score, examples), "examples"
    locations = [_without_folder(place, paths) for place in examples.locations]
    name = f"{_count(sampled, available)} {kind} of {files}{', held out in training' if held_out else ''}"
    return EvaluationSet(name, task, examples, locations, encode_examples(task, examples), score)


def _check_labels_vary(examples: Examples, files: str) -> None:
    """Raise if all labels are equal, as correlations are undefined then."""
    if len(labels := {example.label for example in examples}) < 2:
        raise ValueError(
            f"{files}: every label is `{labels.pop()}`, so correlations are undefined; give other data, or unlabelled "
            "--texts"
        )


def _without_folder(place: str, paths: Sequence[Path]) -> str:
    """Replace a path by the file's short name, because reports are shared with others."""
    for path, name in zip(paths, source_names(paths), strict=True):
        place = place.replace(f"`{path}`", f"`{name}`")
    return place


def plain_texts(task: AnyTask, available: Examples, paths: Sequence[Path], *, max_examples: int) -> EvaluationSet:
    """Encode texts as single, truncated sequences, for any task."""
    texts = available.sample(max_examples)
    locations = [_without_folder(place, paths) for place in texts.locations]
    encoder = Embedding(task.tokenizer, EmbeddingSettings(max_seq_length=task.settings.max_seq_length))
    name = f"{_count(texts, available)} texts"
    return EvaluationSet(name, task, texts, locations, encode_examples(encoder, texts), None)


def random_ids(task: AnyTask) -> EvaluationSet:
    """Return random sequences, for exports without any data."""
    rng = np.random.default_rng(0)
    max_tokens = task.tokenizer.single.capacity(min(task.settings.max_seq_length, _MAX_RANDOM_LENGTH))
    ids = [
        rng.integers(0, task.tokenizer.vocab_size, length)
        for length in rng.integers(1, max_tokens, _NUM_RANDOM, endpoint=True)
    ]
    windows = [[Features(**task.tokenizer.assemble(item))] for item in ids]
    locations = [f"random sequence {index}" for index in range(len(ids))]
    return EvaluationSet(f"{len(ids)} random sequences", task, ids, locations, windows, None)


def _split(examples: Examples, count: int) -> tuple[Examples, Examples]:
    """Split into `count` examples, drawn at random, and the others."""
    first, placed = set(sample_indices(len(examples), count)), list(enumerate(examples.located()))
    return (
        Examples(item for index, item in placed if index in first),
        Examples(item for index, item in placed if index not in first),
    )


def _count(examples: Examples, available: Examples) -> str:
    """Describe the number of sampled examples, such as `1,000 of the 1,500`."""
    if len(examples) == len(available):
        return f"{len(examples):,}"
    return f"{len(examples):,} of the {len(available):,}"


def _read_all_texts(paths: Sequence[Path], columns: Columns) -> Examples:
    texts = Examples(item for path in paths for item in read_texts(path, columns).located())
    if not texts:
        raise ValueError(f"no texts in {', '.join(f'`{path}`' for path in paths)}")
    return texts


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    return dict(zip(source_names(paths), map(source_digest, paths), strict=True))


def _existing(paths: Sequence[str]) -> tuple[Path, ...]:
    return tuple(filter(Path.is_file, map(Path, paths)))
