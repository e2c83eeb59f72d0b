"""Teachers: checkpoints whose outputs a student learns."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tasks import AnyTask, settings_to_dict
from tasks.batching import RunModel, predict, run_features
from tasks.bundle.files import sha256
from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from training.checkpoint.evaluation import torch_run
from training.checkpoint.hub import checkpoint_record
from training.checkpoint.reader import CONFIG_FILE, load_model, load_tokenizer
from training.checkpoint.sentence_transformers import checkpoint_directory, folder_digest, load_embedder
from training.checkpoint.task_card import read_licence, read_task_card
from training.checkpoint.task_inference import read_checkpoint_task
from training.checkpoint.weights import checkpoint_digest
from training.data.examples import Examples, encode_examples
from training.distillation.outputs import CHUNK, Compute, cached_scores
from training.finetuning.embedding_run import stated_settings
from training.loop.distributed import World
from training.loop.precision import autocast, has_bf16
from training.objectives.distillation import MATCHINGS, Rows
from training.reports.grid_report import TEACHER_ROW

TEACHER_FIELDS = ("teacher", "recorded", "outputs")
"""Recipe fields with paths of teachers. Digests stand for their contents."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A checkpoint and its task; the network is loaded when it has to run."""

    checkpoint: Path
    task: AnyTask
    sha256: str
    """Digest of its weights."""
    load: Callable[[], Any]
    """Function that loads the network."""

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return checkpoint_record(self.checkpoint)["name"]

    def vectors(self, texts: Examples, world: World) -> Compute:
        """Load the network; return a function from a slice of texts to the vector of each, [1, size].

        Raises:
            ValueError: naming the location of a text that the teacher cannot read.
        """
        self._check(texts)
        run, batch = self.run(world), max_batch_tokens(world)
        return lambda part: [
            vector[None] for vector in predict(self.task, texts[part], run, max_batch_tokens=batch, chunk_size=CHUNK)
        ]

    def _check(self, examples: Examples) -> None:
        """Raise for an example that the teacher cannot read, before hours of work."""
        located = list(examples.located())
        for first in range(0, len(located), CHUNK):
            encode_examples(self.task, Examples(located[first : first + CHUNK]))

    def task_outputs(self, task: str, examples: Examples, world: World) -> Compute:
        """Load the network; return a function from a slice of examples to the outputs for each (`Matching.rows`).

        Raises:
            ValueError: naming the location of an example that the teacher cannot read.
        """
        self._check(examples)
        run, located, rows_of = self.run(world), list(examples.located()), MATCHINGS[task].rows

        def compute(part: slice) -> list[Rows]:
            chosen = Examples(located[part])
            encoded = encode_examples(self.task, chosen)
            flat = [item for features in encoded for item in features]
            found = iter(run_features(self.task, flat, run, max_batch_tokens=max_batch_tokens(world)))
            outputs = [[next(found) for _ in features] for features in encoded]
            return [rows_of(*item) for item in zip(chosen, encoded, outputs, strict=True)]

        return compute

    def run(self, world: World) -> RunModel:
        """Load the network on the device of this process, in bf16 if that is a GPU (`precision`)."""
        run, device = torch_run(self.load(), self.task, world.device), world.device
        if not precision(world):
            return run

        def in_bf16(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
            with autocast("bf16", device):
                return run(arrays)

        return in_bf16

    def made_from(self) -> dict[str, Any]:
        """Return everything of the teacher that its outputs depend on, as JSON."""
        return {
            "task": self.task.name,
            "weights": self.sha256,
            "config": sha256(checkpoint_directory(self.checkpoint) / CONFIG_FILE),
            "tokenizer": self.task.tokenizer.digest,
            "settings": settings_to_dict(self.task.settings),
        }

    @property
    def digest(self) -> str:
        """Digest of everything that its outputs depend on."""
        return hashlib.sha256(json.dumps(self.made_from(), sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, str]:
        """Return name, digest of the weights and licence, for the task card of the student."""
        licence = read_licence(self.checkpoint)
        return {**checkpoint_record(self.checkpoint), "sha256": self.sha256, "licence": licence}


def read_embedder(checkpoint: Path, pooling: Pooling | None) -> Teacher:
    """Read a teacher of vectors.

    Args:
        checkpoint: folder of sentence-transformers, or a checkpoint of the task `embedding`.
        pooling: pooling of its vectors; None for that of the checkpoint.

    Raises:
        ValueError: if it states no pooling, and none is given.
    """
    directory = checkpoint_directory(checkpoint)
    tokenizer = load_tokenizer(directory)
    stated = stated_settings(checkpoint, tokenizer)
    if pooling is None and "pooling" not in stated:
        raise ValueError(
            f"teacher `{checkpoint}` does not state how its vectors are pooled (no modules.json); see its "
            "description, and give --teacher-pooling"
        )
    settings = EmbeddingSettings(**stated | ({"pooling": pooling} if pooling else {}))
    return Teacher(
        checkpoint=checkpoint,
        task=Embedding(tokenizer, settings),
        sha256=folder_digest(checkpoint),
        load=partial(load_embedder, checkpoint, settings),
    )


def read_task_teacher(checkpoint: Path, task: str) -> Teacher:
    """Read a teacher of a task that can be fine-tuned, whoever trained it.

    Raises:
        ValueError: if it was trained for another task, or its files do not state its settings.
    """
    directory = checkpoint_directory(checkpoint)
    card = read_task_card(directory)
    if card and card.task != task:
        raise ValueError(f"teacher `{checkpoint}` was trained for `{card.task}`, not for `{task}`")
    found = read_checkpoint_task(checkpoint, task=task)
    num_labels = len(getattr(found.task.settings, "labels", ())) or None
    return Teacher(
        checkpoint=checkpoint,
        task=found.task,
        sha256=checkpoint_digest(directory),
        load=partial(load_model, directory, task, num_labels=num_labels),
    )


def precision(world: World) -> dict[str, str]:
    """Return the precision of teachers for the record of their outputs: bf16 on GPUs, as in training; else nothing."""
    return {"precision": "bf16"} if world.device.type == "cuda" and has_bf16(world.device) else {}


def max_batch_tokens(world: World) -> int:
    """Return the padded tokens of a batch that keep the device of this process busy."""
    return 4096 if world.device.type == "cpu" else 32_768


def outputs_folder(recipe: Any) -> Path:
    """Return the folder for the outputs of teachers."""
    folder: Path = recipe.outputs or recipe.run_dir.parent / "teacher-outputs"
    return folder


def digest_of(items: Iterable[Any]) -> str:
    """Return the SHA-256 of texts, or of examples as their fields."""
    found = hashlib.sha256()
    for item in items:
        found.update(repr(item).encode("utf-8", "surrogatepass") + b"\n")
    return found.hexdigest()


def scores_of_teachers(
    recipe: Any, sources: Sequence[Any], dev: Sequence[Any], score: Callable[[Teacher], dict[str, float]]
) -> dict[str, dict[str, float]]:
    """Return the dev scores of teachers by row, each computed once; recorded outputs have none.

    Teachers of one name get their path.

    Args:
        score: function that computes the scores of a teacher.
    """
    teachers = [source for source in sources if isinstance(source, Teacher)]
    counts, found = Counter(teacher.name for teacher in teachers), {}
    for teacher in teachers:
        row = f"{TEACHER_ROW}{teacher.name if counts[teacher.name] == 1 else teacher.checkpoint}"
        made_from = teacher.made_from() | {"dev": digest_of(dev)}
        found[row] = cached_scores(outputs_folder(recipe), made_from, partial(score, teacher))
    return found


def licences(records: Sequence[Mapping[str, str]]) -> str:
    """Describe the licences of teachers in a line."""
    return ", ".join(f"`{item['name']}`: {item['licence'] or 'no licence stated'}" for item in records)
