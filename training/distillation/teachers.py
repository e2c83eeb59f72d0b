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
from tasks.batching import RunModel, run_features
from tasks.bundle.files import sha256
from tasks.embedding import Embedding, Pooling
from training.checkpoint.evaluation import load_network, predict_with_progress, torch_run
from training.checkpoint.hub import checkpoint_record
from training.checkpoint.reader import CONFIG_FILE
from training.checkpoint.sentence_transformers import checkpoint_directory, folder_digest
from training.checkpoint.task_card import read_licence, read_task_card, space_of_vectors
from training.checkpoint.task_inference import read_checkpoint_task
from training.data.examples import Examples, encode_examples
from training.distillation.outputs import CHUNK, Compute, cached_scores
from training.loop.distributed import World
from training.loop.precision import autocast, has_bf16
from training.objectives.distillation import Rows
from training.objectives.similarity import similarity_scores
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

    @property
    def name(self) -> str:
        """Name of the checkpoint."""
        return checkpoint_record(self.checkpoint)["name"]

    def vectors(self, texts: Examples, world: World) -> Compute:
        """Load the network; return a function from a slice of texts to the vector of each, [1, size].

        Raises:
            ValueError: as `outputs`.
        """
        return self.outputs(texts, lambda *item: self.task.decode(*item)[None], world)

    def outputs(self, examples: Examples, rows_of: Callable[..., Rows], world: World) -> Compute:
        """Load the network; return a function from a slice of examples to the rows of each.

        Args:
            rows_of: function from an example, its features and their outputs to rows, such as `Matching.rows`.

        Raises:
            ValueError: naming the location of an example that the teacher cannot read.
        """
        located = list(examples.located())
        for first in range(0, len(located), CHUNK):  # before hours of work
            encode_examples(self.task, Examples(located[first : first + CHUNK]))
        run, max_batch_tokens = self.run(world), 4096 if world.device.type == "cpu" else 32_768

        def compute(part: slice) -> list[Rows]:
            encoded = self.task.encode(examples[part])
            flat = [item for features in encoded for item in features]
            found = iter(run_features(self.task, flat, run, max_batch_tokens=max_batch_tokens))
            return [
                rows_of(example, features, [next(found) for _ in features])
                for example, features in zip(examples[part], encoded, strict=True)
            ]

        return compute

    def scores(self, dev: Sequence[Any], world: World) -> dict[str, float]:
        """Return the scores on dev data."""
        if isinstance(self.task, Embedding):
            return similarity_scores(self.task, dev, self.run(world))
        return self.task.score(dev, predict_with_progress(self.task, dev, self.run(world)))

    def run(self, world: World) -> RunModel:
        """Load the network on the device of this process, in bf16 if that is a GPU (`precision`)."""
        run, device = torch_run(load_network(self.checkpoint, self.task), self.task, world.device), world.device
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
    def space(self) -> str:
        """Space of its vectors."""
        return space_of_vectors(read_task_card(checkpoint_directory(self.checkpoint)), self.task, self.sha256)

    @property
    def digest(self) -> str:
        """Digest of everything that its outputs depend on."""
        return hashlib.sha256(json.dumps(self.made_from(), sort_keys=True).encode()).hexdigest()

    def record(self) -> dict[str, str]:
        """Return name, digest of the weights and licence, for the task card of the student."""
        licence = read_licence(self.checkpoint)
        return {**checkpoint_record(self.checkpoint), "sha256": self.sha256, "licence": licence}


def read_teacher(checkpoint: Path, task: str, pooling: Pooling | None = None) -> Teacher:
    """Read a teacher, whoever trained it.

    Args:
        task: `embedding`, or a task that can be fine-tuned.
        pooling: pooling of its vectors; None for that of the checkpoint.

    Raises:
        ValueError: if it was trained for another task, or its files do not state its settings.
    """
    card, is_embedder = read_task_card(checkpoint_directory(checkpoint)), task == Embedding.name
    if card and card.task != task and not is_embedder:
        raise ValueError(f"teacher `{checkpoint}` was trained for `{card.task}`, not for `{task}`")
    found = read_checkpoint_task(checkpoint, task=task, settings={"pooling": pooling} if pooling else None)
    if is_embedder and found.remark:
        raise ValueError(
            f"teacher `{checkpoint}` does not state how its vectors are pooled (no modules.json); see its "
            "description, and give --teacher-pooling"
        )
    return Teacher(checkpoint=checkpoint, task=found.task, sha256=folder_digest(checkpoint))


def precision(world: World) -> dict[str, str]:
    """Return the precision of teachers for the record of their outputs: bf16 on GPUs, as in training; else nothing."""
    return {"precision": "bf16"} if world.device.type == "cuda" and has_bf16(world.device) else {}


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
    recipe: Any, sources: Sequence[Any], dev: Sequence[Any], world: World
) -> dict[str, dict[str, float]]:
    """Return the dev scores of teachers by row, each computed once; recorded outputs have none.

    Teachers of one name get their path.
    """
    teachers = [source for source in sources if isinstance(source, Teacher)]
    counts, found = Counter(teacher.name for teacher in teachers), {}
    for teacher in teachers:
        row = f"{TEACHER_ROW}{teacher.name if counts[teacher.name] == 1 else teacher.checkpoint}"
        made_from = teacher.made_from() | {"dev": digest_of(dev)}
        found[row] = cached_scores(outputs_folder(recipe), made_from, partial(teacher.scores, dev, world))
    return found


def licences(records: Sequence[Mapping[str, str]]) -> str:
    """Describe the licences of teachers in a line."""
    return ", ".join(f"`{item['name']}`: {item['licence'] or 'no licence stated'}" for item in records)
