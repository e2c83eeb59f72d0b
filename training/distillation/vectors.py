"""Distil sentence embeddings: the student learns the vectors of a teacher on texts without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import tyro
from torch import nn

from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from tasks.features import Features
from tasks.regression import RegressionExample
from training.checkpoint.reader import create_model, load_tokenizer, read_shape
from training.checkpoint.sentence_transformers import checkpoint_directory, folder_digest, load_embedder
from training.command_line.bounds import COUNT, EPOCHS, LEARNING_RATE, NOT_NEGATIVE, TOKENS
from training.data.examples import Examples
from training.data.table_examples import read_text_pairs
from training.distillation.outputs import TeacherOutputs, record_on_main
from training.distillation.recorded_vectors import RecordedVectors, read_recorded_vectors
from training.distillation.teachers import (
    TEACHER_FIELDS,
    Teacher,
    check_different,
    digest_of,
    licences,
    outputs_folder,
    precision,
    read_embedder,
    scores_of_teachers,
)
from training.finetuning.embedding_run import (
    EmbeddingRecipe,
    describe_vectors,
    different_texts,
    embedding_settings,
    encode_texts,
    read_dev_pairs,
    report_texts,
    scores_before,
    train_embedder,
    write_embedder,
)
from training.loop.distributed import World
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory
from training.loop.types import Stage
from training.model.heads import BertModel
from training.model.layer_subset import take_layers
from training.objectives.base import LabelledFeatures
from training.objectives.finetuning import FinetuningData
from training.objectives.similarity import similarity_scores
from training.objectives.vector_distillation import VectorDistillation
from training.reports.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine
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
    writes them. Any served model can be the teacher, or a service of somebody else."""
    train: tuple[Path, ...] = ()
    """Texts: plain text, one text a line, or tables with a column `text` (and `text_pair`, if there is one). Default:
    those of the recorded files."""
    outputs: Path | None = None
    """Folder for the vectors of teachers, which are computed once for each teacher and data. Default: the folder
    `teacher-outputs` beside the run directory."""
    split_sentences: bool = False
    """Split each text into sentences, in any script (Thai and Lao: at spaces)."""
    teacher_pooling: Pooling | None = None
    """Pooling of the teacher's vectors, if it states none."""
    similarity_weight: Annotated[float, NOT_NEGATIVE] = 10.0
    """Weight of the loss of similarities, the squared difference of the cosines of all pairs of texts in a batch; that
    of a text's own vector, 1 - cosine, counts 1."""
    take_layers: tuple[Annotated[int, NOT_NEGATIVE], ...] = ()
    """Keep only these layers of the checkpoint, numbered from 0, such as 0 2 4. With the teacher as checkpoint, the
    student starts as a part of its teacher."""
    from_scratch: bool = False
    """Start from random weights, with the checkpoint's shape and vocabulary."""
    dimensions: tuple[Annotated[int, COUNT], ...] = ()
    """Sizes to which users may cut vectors, such as 128 64 (Matryoshka): each is trained as the whole vector is."""
    global_batch_size: Annotated[int, COUNT] = 128
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
        if not self.train:
            object.__setattr__(self, "train", self.recorded)
        if not self.train:
            raise ValueError("give --train, the texts to learn on")
        if self.global_batch_size < 2:
            raise ValueError("global_batch_size must be at least 2: the texts of a batch are compared")
        if self.teacher_pooling and not self.teacher:
            raise ValueError("--teacher-pooling is for --teacher; recorded vectors are pooled")
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
        return _distil(recipe, run)


def _distil(recipe: VectorDistillRecipe, run: RunDirectory) -> Path:
    sources = _read_sources(recipe)
    data = _read_data(recipe, sources)
    recipe = replace(recipe, pooling=data.task.settings.pooling)
    digests = input_digests(checkpoint_directory(recipe.checkpoint), recipe.train, recipe.dev)
    digests["checkpoint_sha256"] = folder_digest(recipe.checkpoint)
    digests |= {"teachers_sha256": [source.digest for source in sources]}
    if not run.begin(RecipeRecord(recipe, digests, paths=(*PATH_FIELDS, *TEACHER_FIELDS))):
        return run.checkpoint_path
    origin = provenance(recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, digests)
    origin["teachers"] = [source.record() for source in sources]
    torch.manual_seed(recipe.seed)
    model = _create_student(recipe, data.task.settings)
    vectors = [_record(recipe, source, data.texts, run.world) for source in sources]
    before: dict[str, dict[str, float]] = {}
    if run.world.is_main and data.dev:
        before = scores_of_teachers(recipe, sources, data.dev, partial(_score, data.dev, run.world))
        before |= scores_before(data.task, data.dev, model, run.world)
    targets = _project(recipe, model, data.task.settings, vectors)
    if run.world.is_main:
        origin["cuts"] = _report_data(recipe, data, sources, targets)
    batches = _batches(recipe, data, model, targets, run.world)
    progress = train_embedder(recipe, run, data.task, data.dev, model, batches, label="distil")
    if run.world.is_main:
        origin |= training_extent(progress, batches.num_batches(0)) | training_machine(run.world)
        write_embedder(recipe, run, data.task, data.dev, model, baselines=before, origin=origin)
    run.world.barrier()
    return run.checkpoint_path


# Teachers and texts

Source = Teacher | RecordedVectors
"""Origin of the vectors to learn."""


def _read_sources(recipe: VectorDistillRecipe) -> list[Source]:
    if recipe.recorded:
        return [read_recorded_vectors(recipe.recorded)]
    teachers = [read_embedder(path, recipe.teacher_pooling) for path in recipe.teacher]
    check_different(teachers)
    return [*teachers]


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Texts of a run, and the task that encodes them."""

    task: Embedding
    texts: Examples
    """Each different text."""
    features: Sequence[Features]
    """Features of each text."""
    dev: Sequence[RegressionExample]
    """Pairs with a similarity; empty without dev data."""


def _read_data(recipe: VectorDistillRecipe, sources: Sequence[Source]) -> _Data:
    tokenizer = load_tokenizer(checkpoint_directory(recipe.checkpoint))
    settings = embedding_settings(recipe, tokenizer)
    task = Embedding(tokenizer, replace(settings, layers=()) if recipe.from_scratch else settings)
    texts = different_texts(_located_texts(recipe, sources))
    if len(texts) < 2:
        raise ValueError(f"`{recipe.train[0]}` has fewer than two different texts; there is nothing to compare")
    features = list(encode_texts(task, texts, recipe.train_seq_length).values())
    return _Data(task=task, texts=texts, features=features, dev=read_dev_pairs(recipe, tokenizer))


def _located_texts(recipe: VectorDistillRecipe, sources: Sequence[Source]) -> Iterator[tuple[str, str]]:
    """Yield location and text of the training data."""
    if recipe.train == recipe.recorded and not recipe.split_sentences:
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
    return record_on_main(outputs_folder(recipe), made_from, texts.locations, load, world, unit="text")


def _score(dev: Sequence[RegressionExample], world: World, teacher: Teacher) -> dict[str, float]:
    assert isinstance(teacher.task, Embedding)
    return similarity_scores(teacher.task, dev, teacher.run(world))


# Vectors to learn, in the student's size


@dataclass(frozen=True, kw_only=True)
class _TeacherVectors:
    """Vectors to learn, and how those of the student are compared with them."""

    vectors: Sequence[TeacherOutputs]
    """Vectors of each teacher."""
    axes: np.ndarray
    """[teachers' size, size]; projection of the teachers' vectors."""
    sizes: tuple[int, ...]
    """Sizes to which vectors are cut, the whole size first."""
    kept: float | None
    """Fraction of the squared length that the principal axes keep; None without them."""

    def teacher_vectors(self, numbers: np.ndarray) -> np.ndarray:
        """Return the vectors of some texts [texts, size], of length 1; cosines are means of the teachers' cosines."""
        found = [outputs.values[numbers] for outputs in self.vectors]
        units = [vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12) for vectors in found]
        return np.concatenate(units, axis=1) / np.float32(len(units) ** 0.5)


def _create_student(recipe: VectorDistillRecipe, settings: EmbeddingSettings) -> BertModel:
    """Create the student before hours of work.

    Raises:
        ValueError: for layers or dimensions that it does not have.
    """
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


def _project(
    recipe: VectorDistillRecipe, model: BertModel, settings: EmbeddingSettings, vectors: Sequence[TeacherOutputs]
) -> _TeacherVectors:
    """Choose the projection: principal axes for smaller vectors and those that can be cut; else zeros are added."""
    teacher_size, size = sum(outputs.width for outputs in vectors), _vector_size(model, settings)
    axes = np.eye(teacher_size, size, dtype=np.float32)
    found = _TeacherVectors(vectors=vectors, axes=axes, sizes=(size, *recipe.dimensions), kept=None)
    if not recipe.dimensions and size >= teacher_size:
        return found
    sample = np.arange(0, len(vectors[0]), -(-len(vectors[0]) // SAMPLE))
    axes, kept = principal_axes(found.teacher_vectors(sample), min(size, teacher_size))
    return replace(found, axes=np.pad(axes, [(0, 0), (0, size - axes.shape[1])]), kept=kept)


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


def _vector_size(model: BertModel, settings: EmbeddingSettings) -> int:
    """Return the size of the student's vectors."""
    linear = [layer for layer in model.dense.values() if isinstance(layer, nn.Linear)]
    return linear[-1].out_features if linear else len(settings.poolings) * model.config.hidden_size


def _report_data(
    recipe: VectorDistillRecipe, data: _Data, sources: Sequence[Source], targets: _TeacherVectors
) -> dict[str, Any]:
    """Describe teachers and data; return records of truncated texts, for the task card."""
    kept = "" if targets.kept is None else f", which keep {targets.kept:.1%} of its vectors"
    print(f"teacher: {licences([source.record() for source in sources])}", flush=True)
    print(
        f"{len(data.texts):,} texts; {describe_vectors(data.task.settings)}; {targets.axes.shape[0]} numbers of the "
        f"teacher are compared with {targets.sizes[0]}{kept}",
        flush=True,
    )
    return report_texts(recipe, data.task, ((item,) for item in data.features), data.dev)


# Training


def _batches(
    recipe: VectorDistillRecipe, data: _Data, model: BertModel, targets: _TeacherVectors, world: World
) -> FinetuningData:
    objective = VectorDistillation(
        data.task.settings,
        model.dense,
        targets.teacher_vectors,
        axes=targets.axes,
        sizes=targets.sizes,
        similarity_weight=recipe.similarity_weight,
        world=world,
    )
    items = [LabelledFeatures((item,), (), number) for number, item in enumerate(data.features)]
    pad_id = data.task.tokenizer.pad_id
    return FinetuningData(items, objective, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=pad_id)
