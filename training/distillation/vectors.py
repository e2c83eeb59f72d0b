"""Distil sentence embeddings: the student learns the vectors of a teacher on texts without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
import tyro
from torch import nn

from tasks.embedding import EmbeddingSettings, Pooling
from tasks.schema import Bounds
from training.checkpoint.reader import create_model, read_shape
from training.checkpoint.sentence_transformers import checkpoint_directory, load_embedder
from training.command_line.bounds import COUNT, EPOCHS, LEARNING_RATE, NOT_NEGATIVE, TOKENS, refuse_unused
from training.data.examples import Examples
from training.data.table_examples import read_text_pairs
from training.distillation.outputs import TeacherOutputs, record_outputs
from training.distillation.recorded_vectors import RecordedVectors, read_recorded_vectors
from training.distillation.teachers import (
    TEACHER_FIELDS,
    Teacher,
    digest_of,
    licences,
    outputs_folder,
    precision,
    read_teacher,
    scores_of_teachers,
)
from training.finetuning.embedding_run import (
    EmbeddingData,
    EmbeddingRecipe,
    describe_vectors,
    different_texts,
    embedding_digests,
    embedding_task,
    encode_texts,
    read_dev_pairs,
    report_texts,
    scores_before,
    train_embedder,
)
from training.loop.distributed import World
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory
from training.loop.types import Stage
from training.model.heads import BertModel
from training.model.layer_subset import take_layers
from training.objectives.base import LabelledFeatures
from training.objectives.vector_distillation import VectorDistillation
from training.reports.result import PATH_FIELDS, provenance
from training.text.sentences import split_sentences

SAMPLE = 50_000
"""Most vectors that principal axes are computed from."""


@dataclass(frozen=True, kw_only=True)
class VectorDistillRecipe(EmbeddingRecipe):
    """Train a student to give the vectors of a teacher."""

    stage: ClassVar[Stage] = "distillation"

    task: Annotated[Literal["embedding"], tyro.conf.Positional, tyro.conf.arg(metavar="TASK")]
    """embedding: vectors of texts."""
    teacher: tuple[Path, ...] = ()
    """Teachers: folders of sentence-transformers, checkpoints of the task embedding, or repositories of the hub. The
    vectors of several are put one after the other, so that the student learns their mean cosines."""
    recorded: tuple[Path, ...] = ()
    """Instead of a teacher: Parquet files with columns `text` and `vector`, as `bertline embed -o vectors.parquet`
    writes them."""
    train: tuple[Path, ...] = ()
    """Texts: plain text, one text a line, or tables with a column `text` (and `text_pair`, if there is one). Default:
    those of the recorded files."""
    outputs: Path | None = None
    """Folder for the vectors of teachers, which are computed once for each teacher and data. Default: the folder
    `teacher-outputs` next to the run directory."""
    split_sentences: bool = False
    """Split each text into sentences, in any script (Thai and Lao: at spaces)."""
    teacher_pooling: Pooling | None = None
    """Pooling of the teacher's vectors, if it states none."""
    similarity_weight: Annotated[float, NOT_NEGATIVE] = 10.0
    """Weight of the loss of similarities, the squared difference of the cosines of all pairs of texts in a batch; that
    of a text's own vector, 1 - cosine, counts 1."""
    take_layers: tuple[Annotated[int, NOT_NEGATIVE], ...] = ()
    """Keep only these layers of the checkpoint, numbered from 0, such as 0 2 4."""
    from_scratch: bool = False
    """Start from random weights, with the checkpoint's shape and vocabulary."""
    dimensions: tuple[Annotated[int, COUNT], ...] = ()
    """Sizes to which users may cut vectors, such as 128 64 (Matryoshka): each is trained as the whole vector is."""
    global_batch_size: Annotated[int, Bounds(least=2)] = 128
    """Texts in a step, over all processes; the similarities of all are compared."""
    learning_rate: Annotated[float, LEARNING_RATE] = 1e-3
    train_seq_length: Annotated[int, TOKENS] = 128
    """Longest training text of the student in tokens; longer texts are cut. The teacher reads up to its own limit."""
    num_epochs: Annotated[float, EPOCHS] = 1.0
    eval_every: Annotated[int, NOT_NEGATIVE] = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.teacher) == bool(self.recorded):
            raise ValueError("give either --teacher or --recorded, the vectors to learn")
        if self.split_sentences and not self.train:
            raise ValueError("--split-sentences is for --train; recorded texts stay as they are")
        if not self.teacher:
            refuse_unused(self, "teacher_pooling", "is for --teacher")
        if not self.train:
            object.__setattr__(self, "train", self.recorded)
        if not self.train:
            raise ValueError("give --train, the texts to learn on")
        if self.from_scratch and self.take_layers:
            raise ValueError("--from-scratch takes nothing from the checkpoint's layers: leave out --take-layers")
        object.__setattr__(self, "dimensions", tuple(sorted({*self.dimensions}, reverse=True)))


def distil_vectors(recipe: VectorDistillRecipe, world: World) -> Path:
    """Train, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data, teacher or checkpoint cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        sources: list[Source] = [read_teacher(path, recipe.task, recipe.teacher_pooling) for path in recipe.teacher]
        sources += [read_recorded_vectors(recipe.recorded)] if recipe.recorded else []
        data = _read_data(recipe, sources)
        settings = data.task.settings
        recipe = replace(recipe, pooling=settings.pooling)
        digests = embedding_digests(recipe, recipe.train) | {"teachers_sha256": [source.digest for source in sources]}
        if not run.begin(RecipeRecord(recipe, digests, paths=(*PATH_FIELDS, *TEACHER_FIELDS))):
            return run.checkpoint_path
        origin = provenance(recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, digests)
        origin["teachers"] = [source.record() for source in sources]
        torch.manual_seed(recipe.seed)
        model = _create_student(recipe, settings)
        outputs = [_record(recipe, source, data.texts, world) for source in sources]
        before: dict[str, dict[str, float]] = {}
        if world.is_main and data.dev:
            before = scores_of_teachers(recipe, sources, data.dev, world)
            before |= scores_before(data, model, world)
        axes, kept = _project(outputs, _vector_size(model, settings), with_dimensions=bool(recipe.dimensions))
        teacher_size, size = axes.shape
        if teacher_size == size and not recipe.dimensions and (space := _shared_space(sources, settings)):
            origin["space"] = space  # the axes are the teacher's own
        if world.is_main:
            print(f"teacher: {licences(origin['teachers'])}", flush=True)
            print(
                f"{len(data.texts):,} texts; {describe_vectors(settings)}; {teacher_size} numbers of the teacher are "
                f"compared with {size}{kept}",
                flush=True,
            )
            origin["cuts"] = report_texts(recipe, data)
        objective = VectorDistillation(
            settings,
            model.dense,
            partial(_vectors_of, outputs),
            axes=axes,
            sizes=(size, *recipe.dimensions),
            similarity_weight=recipe.similarity_weight,
            world=world,
        )
        train_embedder(recipe, run, data, model, objective, baselines=before, origin=origin, label="distil")
        return run.checkpoint_path


# Teachers and texts

Source = Teacher | RecordedVectors
"""Origin of the vectors to learn."""


def _read_data(recipe: VectorDistillRecipe, sources: Sequence[Source]) -> EmbeddingData:
    task = embedding_task(recipe)
    task = task.with_settings(layers=()) if recipe.from_scratch else task
    texts = different_texts(_located_texts(recipe, sources))
    if len(texts) < 2:
        raise ValueError(f"`{recipe.train[0]}` has fewer than two different texts; there is nothing to compare")
    features = encode_texts(task, texts, recipe.train_seq_length).values()
    items = [LabelledFeatures((item,), (), number) for number, item in enumerate(features)]
    return EmbeddingData(task=task, texts=texts, items=items, dev=read_dev_pairs(recipe, task.tokenizer))


def _located_texts(recipe: VectorDistillRecipe, sources: Sequence[Source]) -> Iterator[tuple[str, str]]:
    """Yield location and text of the training data."""
    if recipe.train == recipe.recorded:
        for source in sources:
            assert isinstance(source, RecordedVectors)
            yield from source.texts.located()
        return
    for path in recipe.train:
        for location, pair in read_text_pairs(path, recipe.columns).located():
            for text in filter(None, pair):
                for part in split_sentences(text) if recipe.split_sentences else [text]:
                    yield location, part


def _record(recipe: VectorDistillRecipe, source: Source, texts: Examples, world: World) -> TeacherOutputs:
    """Return the vectors of a teacher for all texts; the main process computes those that are missing."""
    device = precision(world) if isinstance(source, Teacher) else {}
    made_from = source.made_from() | {"texts": digest_of(texts)} | device
    load = partial(source.vectors, texts, world)
    return record_outputs(outputs_folder(recipe), made_from, texts.locations, load, world, unit="text")


def _create_student(recipe: VectorDistillRecipe, settings: EmbeddingSettings) -> BertModel:
    """Create the student, so that layers or dimensions that it does not have are refused before hours of work."""
    if recipe.from_scratch:
        shape = read_shape(checkpoint_directory(recipe.checkpoint))
        model = create_model("embedding", shape, dropout=recipe.dropout)
    else:
        model = load_embedder(recipe.checkpoint, settings, new_head=True, dropout=recipe.dropout)
    model = take_layers(model, recipe.take_layers) if recipe.take_layers else model
    model.bert.pooler.requires_grad_(False)
    size = _vector_size(model, settings)
    if too_large := [dimension for dimension in recipe.dimensions if dimension >= size]:
        raise ValueError(f"--dimensions `{too_large[0]}` must be below the {size} of the student's vectors")
    return model


def _vector_size(model: BertModel, settings: EmbeddingSettings) -> int:
    """Return the size of the student's vectors."""
    linear = [layer for layer in model.dense.values() if isinstance(layer, nn.Linear)]
    return linear[-1].out_features if linear else len(settings.poolings) * model.config.hidden_size


def _shared_space(sources: Sequence[Source], settings: EmbeddingSettings) -> str:
    """Return the space of the only teacher, if its vectors have length 1 as the student's; else nothing."""
    (source, *others) = sources
    if others or not isinstance(source, Teacher):
        return ""
    return source.space if settings.normalize and source.task.settings.normalize else ""


# Vectors to learn, in the student's size


def _vectors_of(outputs: Sequence[TeacherOutputs], numbers: np.ndarray) -> np.ndarray:
    """Return teacher vectors of some texts [texts, size], of length 1; cosines are means of the teachers' cosines."""
    found = [item.values[numbers] for item in outputs]
    units = [vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12) for vectors in found]
    return np.concatenate(units, axis=1) / np.float32(len(units) ** 0.5)


def _project(outputs: Sequence[TeacherOutputs], size: int, *, with_dimensions: bool) -> tuple[np.ndarray, str]:
    """Choose the projection: principal axes for smaller vectors and those that can be cut; else zeros are added.

    Returns:
        The axes [teachers' size, size], and words about how much of the vectors they keep, if they are principal.
    """
    teacher_size = sum(item.width for item in outputs)
    if not with_dimensions and size >= teacher_size:
        return np.eye(teacher_size, size, dtype=np.float32), ""
    sample = np.arange(0, len(outputs[0]), -(-len(outputs[0]) // SAMPLE))
    axes, kept = principal_axes(_vectors_of(outputs, sample), min(size, teacher_size))
    return np.pad(axes, [(0, 0), (0, size - axes.shape[1])]), f", which keep {kept:.1%} of its vectors"


def principal_axes(vectors: np.ndarray, size: int) -> tuple[np.ndarray, float]:
    """Return the axes that keep most of some vectors' squared length, largest first.

    The vectors are not centred, as cosines are measured from the origin.

    Args:
        vectors: [vectors, teacher's size].
        size: number of axes.

    Returns:
        The axes [teacher's size, size], which are orthonormal, and the fraction of the squared length that they keep.
    """
    sample = np.asarray(vectors, np.float64)
    values, axes = np.linalg.eigh(sample.T @ sample)
    order = np.argsort(-values)[:size]
    signs = np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # the same axes on every machine
    return (axes * signs)[:, order].astype(np.float32), float(values[order].sum() / values.sum())
