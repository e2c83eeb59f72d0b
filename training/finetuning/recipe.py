"""Recipe of fine-tuning, and its default learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import tyro

from tasks import TASKS
from tasks.bundle.files import sha256
from tasks.registry import LabelledTask
from tasks.text.json_files import read_json
from training.checkpoint.reader import read_shape
from training.command_line.bounds import (
    BELOW_ONE,
    COUNT,
    EPOCHS,
    FRACTION,
    LEARNING_RATE,
    NOT_NEGATIVE,
    TOKENS,
    refuse_unused,
)
from training.data.columns import Columns
from training.loop.recipe import RECIPE_FILE, RecipeRecord, stage_of
from training.loop.run_directory import RunDirectory
from training.loop.types import LoopSettings, Stage
from training.model.config import EncoderConfig
from training.objectives.classes import ClassObjective
from training.objectives.registry import OBJECTIVES
from training.reports.result import PATH_FIELDS

TASK_FIELDS = ("doc_stride", "max_query_length", "max_answer_length", "null_threshold", "thresholds")
"""Recipe fields that are settings of some tasks only."""
LOSS_FIELDS = ("class_weights", "label_smoothing")
"""Recipe fields that change the loss of labels."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(LoopSettings):
    """Fine-tune a checkpoint on labelled data."""

    stage: ClassVar[Stage] = "fine-tuning"

    task: Annotated[
        LabelledTask,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TASK"),
    ]
    """Task to learn:
    - classification: a label for a text, or for a pair; with lists of labels, any number of them
    - spans: the answer to a question as a span of a text (SQuAD)
    - regression: a number for a text, or for a pair
    - multiple-choice: the right one of several answers
    - tagging: a tag for each word, such as names (CoNLL)"""
    checkpoint: Path
    """Checkpoint to start from, of a family in docs/reference/encoders.md: a directory, or a repository of the Hugging
    Face hub, as org/name or org/name@revision."""
    train: tuple[Path, ...]
    """Files: .tsv, .csv, .jsonl, .parquet; SQuAD's .json (spans); CoNLL (tagging); or a data set of the hub of
    Hugging Face, as hf:ID,config=NAME,split=NAME."""
    dev: tuple[Path, ...] = ()
    """Held-out data to score on, in the same format."""
    dev_fraction: Annotated[float, BELOW_ONE] = 0.0
    """Without --dev: fraction of the training data to hold out and score on, such as 0.2, at random in the proportions
    of the labels."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    compile: Literal["auto", "on", "off"] = "off"
    """torch.compile; auto: on for GPUs. It compiles each sequence length separately, so it pays only on long runs."""
    columns: Columns = field(default_factory=Columns)
    """Columns of the training and dev data."""
    from_scratch: bool = False
    """Start from random weights, with the checkpoint's shape and vocabulary, to measure the effect of pretraining."""
    frozen: bool = False
    """Train the head only, on frozen hidden states (the feature-based approach, section 5.3 of the paper)."""
    take_layers: tuple[Annotated[int, NOT_NEGATIVE], ...] = ()
    """Keep only these layers of the checkpoint, numbered from 0, such as 0 2 4, as DistilBERT does. With
    --from-scratch, only their number counts."""
    num_epochs: Annotated[float, EPOCHS] = 3.0
    """Passes through the training data."""
    learning_rate: Annotated[float, LEARNING_RATE] | None = None  # type: ignore[assignment]  # `finetune` sets it
    """Peak of the learning rate. None: by the hidden size of the encoder, 3e-4 up to 256 (bertline-mini), 1e-4 up to
    512, 5e-5 up to 768 (BERT-base), 2e-5 above."""
    checkpoint_every: Annotated[int, NOT_NEGATIVE] = 200
    eval_examples: Annotated[int, COUNT] = 500
    """Random dev examples for the curve. The final score is on all dev examples."""
    eval_every: Annotated[int, COUNT] | None = None
    """Steps between scores for the curve; None for a quarter of the steps or, with --patience, an epoch."""
    class_weights: Literal["balanced"] | Path | None = None
    """Classification and tagging: weight of each label in the loss. `balanced`: inverse to its frequency in the
    training data; or a JSON file such as {"spam": 5, "ham": 0.5}. In multi-label data: weight of texts with the label,
    against 1 of those without (pos_weight); balanced: their ratio."""
    label_smoothing: Annotated[float, BELOW_ONE] = 0.0
    """Classification and tagging: fraction of each target that is spread evenly over all labels, such as 0.1."""
    max_seq_length: Annotated[int, TOKENS] | None = None
    """Longest sequence in tokens. None for 384 in spans and 128 in other tasks, or the checkpoint's limit if lower."""
    doc_stride: Annotated[int, COUNT] = 128
    """Spans and tagging: tokens between the starts of two windows of a long text, at most half a window."""
    max_query_length: Annotated[int, COUNT] = 64
    """Spans: longest question in tokens."""
    max_answer_length: Annotated[int, COUNT] = 30
    """Spans: longest answer in tokens."""
    null_threshold: float | Literal["auto"] = 0.0
    """Spans with unanswerable questions: lead in logits that "no answer" needs over the best span; `auto` for the value
    with the best F1 on dev, and for temperatures that make scores probabilities there."""
    thresholds: tuple[Annotated[float, FRACTION], ...] | Literal["auto"] = "auto"
    """Multi-label classification: smallest score that selects a label, one for all or one for each, in the order of
    their names; `auto` for those with the best F1 of each label on dev (0.5 without dev)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dev_fraction and (self.dev or not self.train):
            raise ValueError("--dev-fraction needs --train, and replaces --dev")
        for name in TASK_FIELDS:
            tasks = [task for task in OBJECTIVES if hasattr(TASKS[task].settings_type, name)]
            if self.task not in tasks:
                refuse_unused(self, name, f"is for {' and '.join(tasks)}")
        if self.task in OBJECTIVES and not isinstance(OBJECTIVES[self.task], ClassObjective):
            for name in LOSS_FIELDS:
                refuse_unused(self, name, "is for classification and tagging")
        if self.frozen:
            for name in ("unfreeze_every", "layer_decay"):
                refuse_unused(self, name, "is for layers that train: leave out --frozen")

    @property
    def has_dev(self) -> bool:
        """True if there are dev data."""
        return bool(self.dev or self.dev_fraction)

    def shape(self) -> EncoderConfig:
        """Return the shape of the network: that of the checkpoint."""
        return read_shape(self.checkpoint)


RecipeT = TypeVar("RecipeT", bound=FinetuneRecipe)


def finetuning_record(
    recipe: FinetuneRecipe, digests: Mapping[str, Any], paths: tuple[str, ...] = PATH_FIELDS
) -> RecipeRecord:
    """Return the record of a recipe, with digests of data, weights and tokenizer, and that of its class weights."""
    if isinstance(recipe.class_weights, Path):
        digests = {**digests, "class_weights_sha256": sha256(recipe.class_weights)}
    return RecipeRecord(recipe, digests, paths=paths)


# Learning rate

DEFAULT_LEARNING_RATES = ((256, 3e-4), (512, 1e-4), (768, 5e-5), (math.inf, 2e-5))
"""Largest hidden size, and the learning rate up to it: measured for 256 (docs/results.md); of the BERT paper for 768
and 1,024; in between for 512."""


def default_learning_rate(hidden_size: int) -> float:
    """Return the default learning rate of fine-tuning for the hidden size of an encoder."""
    return next(rate for size, rate in DEFAULT_LEARNING_RATES if hidden_size <= size)


def with_learning_rate(recipe: RecipeT, run: RunDirectory) -> RecipeT:
    """Set the learning rate if the recipe has none: that of the run if it resumes, else the default."""
    if recipe.learning_rate is not None:
        return recipe
    path = recipe.run_dir / RECIPE_FILE
    before = read_json(path) if path.is_file() and (run.states() or run.checkpoint_path.exists()) else {}
    if stage_of(before) == recipe.stage and isinstance(rate := before.get("learning_rate"), float):
        return replace(recipe, learning_rate=rate)
    hidden_size = read_shape(recipe.checkpoint).hidden_size
    rate = default_learning_rate(hidden_size)
    if run.world.is_main:
        print(f"learning rate: {rate:g}, by default for hidden size {hidden_size} (--learning-rate)", flush=True)
    return replace(recipe, learning_rate=rate)
