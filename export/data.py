"""What an export is judged, calibrated and timed on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from export.autotune.workload import Workload, typical_lengths
from export.evaluation_set import Evidence, divided, labelled, plain_texts, random_ids
from tasks import AnyTask
from tasks.embedding import Embedding
from tasks.features import Features
from training.bounds import COUNT, check_numbers
from training.data.columns import Columns, dev_columns, existing_columns
from training.data.examples import Examples
from training.data.sources import source_digest, source_names
from training.data.table_examples import read_texts
from training.task_card import TaskCard

_NUM_TIMED = 400
"""Sequences that graphs are timed on."""
MIN_APART = 40
"""Texts from which on some give ranges, and others judge."""


@dataclass(frozen=True, kw_only=True)
class Data:
    """Files with examples. Where none are given, those of the checkpoint's training are taken, if they are there."""

    dev: tuple[Path, ...] = ()
    """Labelled data to score on, as `--dev` of training.finetune; for embeddings pairs with numbers. Unset: those of
    the checkpoint's training for the task, if they are there."""
    train: tuple[Path, ...] = ()
    """Training data: static int8 takes the ranges of activations from them. Unset: those of the checkpoint's training
    for the task, if they are there."""
    columns: tyro.conf.Suppress[Columns] = field(default_factory=Columns)
    """Of all of them."""
    dev_columns: tyro.conf.Suppress[Columns | None] = None
    """Of dev data that are the training's own; None for the same."""
    train_columns: tyro.conf.Suppress[Columns | None] = None
    """Of training data that are the training's own; None for the same."""
    texts: Path | None = None
    """Texts without labels, one a line, or a table: nothing is scored, vectors or logits are compared. For int8 some
    hundred are wanted: up to half of them give ranges, and the others judge."""
    max_examples: Annotated[int, COUNT] = 1000
    """Examples that are scored, at most; of masked-lm those of the first 1,000 passages of each file."""
    metric: str | None = None
    """Score on dev that must not fall, such as matthews. Unset: the first of the task's."""
    num_calibration: Annotated[int, COUNT] = 256
    """Examples from which ranges are taken, at most."""

    def check(self) -> None:
        """Look for what contradicts itself.

        Raises:
            ValueError: naming the flags.
        """
        check_numbers(self)
        if self.texts and (self.dev or self.train):
            raise ValueError("--texts stand alone: give them, or --dev and --train")
        if self.texts and self.metric:
            raise ValueError("--metric is a score on --dev, and --texts are not scored: leave it out")
        if impossible := [path for path in self.files if "\0" in str(path)]:
            raise ValueError(f"no such file: {str(impossible[0])!a}")

    @property
    def files(self) -> tuple[Path, ...]:
        """All that are named."""
        return (*self.dev, *self.train, *((self.texts,) if self.texts else ()))

    def or_those_of(self, card: TaskCard | None, task: AnyTask) -> Data:
        """Itself, with what it does not name, `dev` or `train`, from a training for the task, with their columns."""
        found, recipe = self, self._recipe(card, task)
        if recipe and not self.train:
            columns = dev_columns({"columns": recipe.get("columns", {})})
            found = replace(found, train=_those_there(recipe.get("train", ())), train_columns=columns)
        if recipe and not self.dev:
            dev = _those_there(recipe.get("dev", ()))
            found = replace(found, dev=dev, dev_columns=existing_columns(dev, dev_columns(recipe)))
        return found

    def not_there(self, card: TaskCard | None, task: AnyTask) -> list[str]:
        """Names of the files of a training for the task that are looked for in vain, where none are given to judge."""
        recipe = {} if self.dev else self._recipe(card, task)
        wanted = [*recipe.get("dev", ()), *(() if self.train else recipe.get("train", ()))]
        return [name for name in wanted if not Path(name).is_file()]

    def _recipe(self, card: TaskCard | None, task: AnyTask) -> Mapping[str, Any]:
        """Of the training for the task; empty where there was none, or texts are given instead of its data."""
        if self.texts or not card or card.task != task.name:
            return {}
        recipe: Mapping[str, Any] = card.provenance.get("recipe", {})
        return recipe

    def evidence(self, task: AnyTask) -> Evidence:
        """What graphs are judged on: the labelled data, else the texts, else random ids.

        Raises:
            ValueError: naming the file and the line of what cannot be used.
        """
        if self.dev:
            found = labelled(task, self.dev, self.dev_columns or self.columns, max_examples=self.max_examples)
            return found.judged_by(self.metric) if self.metric else found
        if self.metric:
            raise ValueError(f"nothing is scored, so that --metric `{self.metric}` means nothing: give --dev")
        if self.texts:
            there = _texts_of((self.texts,), self.columns)
            return plain_texts(task, there, (self.texts,), max_examples=self.max_examples)
        return random_ids(task)

    def with_ranges(self, task: AnyTask) -> tuple[Evidence, list[Features], str]:
        """What to judge on; sequences to take ranges from: none where there are neither training data nor texts; and
        what to know of these ranges, in a line: empty where the evidence says it all.

        Raises:
            ValueError: as `evidence`.
        """
        if self.texts:
            return self._with_ranges_of(self.texts, task)
        evidence = self.evidence(task)
        if self.train:
            return evidence, self._of_training(task), f"ranges from {', '.join(source_names(self.train))}"
        given = "no --train" if self.dev else "neither --train nor --texts"
        return evidence, [], f"{given}: dynamic ranges only, results depend on the batch"

    def _with_ranges_of(self, texts: Path, task: AnyTask) -> tuple[Evidence, list[Features], str]:
        """Other texts than those that judge give the ranges, where there are enough."""
        there = _texts_of((texts,), self.columns)
        if len(there) < MIN_APART:
            both = plain_texts(task, there, (texts,), max_examples=self.max_examples)
            remark = f"{both.name} give ranges and judge, which flatters them; give some hundred, {MIN_APART} at least"
            evidence = replace(both, name=f"{both.name}, which gave the ranges, too")
            return evidence, both.some(self.num_calibration).features, remark
        given, others = divided(there, min(self.num_calibration, len(there) // 2))
        evidence = plain_texts(task, others, (texts,), max_examples=self.max_examples)
        sequences = plain_texts(task, given, (texts,), max_examples=len(given)).features
        return replace(evidence, name=f"{evidence.name}, ranges from {len(given):,} others"), sequences, ""

    def _of_training(self, task: AnyTask) -> list[Features]:
        columns = self.columns
        if self.train_columns:
            columns = existing_columns(self.train, self.train_columns)
        if isinstance(task, Embedding):
            there = _texts_of(self.train, columns)
            return plain_texts(task, there, self.train, max_examples=self.num_calibration).features
        return labelled(task, self.train, columns, max_examples=self.num_calibration, scored=False).features

    def record(self, evidence: Evidence, calibrated_on: Sequence[Features]) -> dict[str, Any]:
        """What is written down of them: how much of what was used, and digests of the files.

        Args:
            calibrated_on: sequences that ranges were taken from.
        """
        texts = (self.texts,) if self.texts else ()
        found: dict[str, Any] = {"judged_on": {"what": evidence.name, "files": _digests(self.dev or texts)}}
        if evidence.num_cut:
            found["judged_on"]["num_cut"] = evidence.num_cut
        if all(getattr(example, "text_pair", None) for example in evidence.examples):
            found["judged_on"]["text_pairs"] = True
        if calibrated_on:
            digests = _digests(self.train or texts)
            what = f"{len(calibrated_on):,} sequences of {', '.join(digests)}"
            found["calibrated_on"] = {"what": what, "files": digests}
        return found

    def workload(self, task: AnyTask, evidence: Evidence) -> Workload:
        """Sequences as long as those to come."""
        if self.dev or self.texts:
            lengths = tuple(len(features) for features in evidence.some(_NUM_TIMED).features)
        else:
            lengths = typical_lengths(_NUM_TIMED, task.settings.max_seq_length)
        return Workload(lengths, task.tokenizer.vocab_size)


def _texts_of(paths: Sequence[Path], columns: Columns) -> Examples:
    found = Examples(item for path in paths for item in read_texts(path, columns).located())
    if not found:
        raise ValueError(f"no texts in {', '.join(f'`{path}`' for path in paths)}")
    return found


def _digests(paths: Sequence[Path]) -> dict[str, str]:
    return dict(zip(source_names(paths), map(source_digest, paths), strict=True))


def _those_there(paths: Sequence[str]) -> tuple[Path, ...]:
    return tuple(Path(path) for path in paths if Path(path).is_file())
