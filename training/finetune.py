"""Fine-tune a checkpoint on sequence classification or extractive question answering (section 3.2 of the paper).

    python -m training.finetune classification --checkpoint runs/mini/checkpoint --train a.tsv --dev b.tsv --run-dir a
    python -m training.finetune spans --checkpoint runs/mini/checkpoint --train a.json --dev b.json --run-dir b

The checkpoint may be ours or any Hugging Face BERT directory. The same command again resumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from torch import Tensor, nn

from tasks import Task, create_task
from tasks.base import TaskSettings
from tasks.batching import predict
from tasks.classification import ClassificationExample, ClassificationSettings
from tasks.features import Features, collate
from tasks.files import sha256
from tasks.spans import SpanExample, SpanSettings, Window
from training.baselines import baseline
from training.checkpoint import (
    TaskCard,
    checkpoint_digest,
    create_model,
    load_model,
    load_tokenizer,
    read_shape,
    read_task_card,
    save_checkpoint,
)
from training.command import command, parse
from training.data import Columns, read_examples
from training.distributed import World, world
from training.evaluate import format_scores, predict_with_progress, torch_run
from training.loop import Batch, Evaluation, LoopSettings, Phase, recipe_fields, train
from training.model import BertModel
from training.plot import plot_run
from training.pretraining_examples import random_generator
from training.run import Run


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(LoopSettings):
    """Fine-tune a checkpoint on labelled data."""

    task: tyro.conf.Positional[Literal["classification", "spans"]]
    checkpoint: Path
    """Checkpoint to start from: ours, or any Hugging Face BERT directory."""
    train: tuple[Path, ...]
    """SQuAD JSON for spans; .tsv, .csv or .jsonl for classification."""
    dev: tuple[Path, ...] = ()
    """Held-out data to score on, in the same format."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    columns: Columns = field(default_factory=Columns)
    from_scratch: bool = False
    """Keep only the checkpoint's shape and vocabulary and start from random weights: what is pretraining worth?"""
    num_epochs: float = 3.0
    learning_rate: float = 5e-5
    checkpoint_every: int = 200
    eval_examples: int = 500
    """Dev examples for the curve, scored four times on the way; the final score is over all of them."""
    max_seq_length: int | None = None
    """Longest sequence in tokens; None for 128 in classification, 384 in spans, or what the checkpoint can."""
    doc_stride: int = 128
    """Spans: tokens from one window of a long context to the next."""
    max_query_length: int = 64
    """Spans: longest question in tokens."""
    max_answer_length: int = 30
    """Spans: longest answer in tokens."""
    null_threshold: float = 0.0
    """Spans with unanswerable questions: how far "no answer" must win."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_epochs <= 0 or self.eval_examples < 1:
            raise ValueError("num_epochs must be above 0, eval_examples at least 1")


LENGTH_STEP = 16
"""Sequences are padded to a multiple of this many tokens, or to the longest of the data."""


class FinetuningData:
    """Global batches of labelled features, shuffled anew each epoch; sequences of like length share a batch.

    Args:
        sequences: features with their labels: the number of the class, or first and last token of the answer.
    """

    def __init__(
        self, sequences: Sequence[tuple[Features, tuple[int, ...]]], *, global_batch_size: int, seed: int, pad_id: int
    ) -> None:
        self.sequences = sequences
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.pad_id = pad_id
        self._lengths = np.array([len(features) for features, _ in sequences])
        self._cached: tuple[int, np.ndarray] = (-1, np.zeros(0))

    def num_batches(self, epoch: int) -> int:
        """Global batches in an epoch; the last is filled up from the start."""
        return -(-len(self.sequences) // self.global_batch_size)

    def batch(self, epoch: int, index: int, part: slice) -> Batch:
        """The sequences `part` of a global batch."""
        if self._cached[0] != epoch:
            self._cached = (epoch, self._order(epoch))
        chosen = [self.sequences[number] for number in self._cached[1][index][part]]
        arrays = collate([features for features, _ in chosen], pad_id=self.pad_id, length=self._padded_length(chosen))
        num_tokens = int(arrays["attention_mask"].sum())
        inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
        labels = torch.tensor([label for _, label in chosen])
        return Batch(inputs, {"labels": labels}, {"loss": len(chosen)}, num_tokens)

    def _padded_length(self, sequences: Sequence[tuple[Features, tuple[int, ...]]]) -> int:
        """Lengths are rounded up, so that shapes are few (see `training.pretrain.pretraining_batch`)."""
        longest = max(len(features) for features, _ in sequences)
        return min(longest + -longest % LENGTH_STEP, int(self._lengths.max()))

    def _order(self, epoch: int) -> np.ndarray:
        """[batches, global_batch_size] numbers of sequences: shuffled, then sorted by length within 32 batches."""
        rng = random_generator(self.seed, epoch, stream=0)
        order = np.resize(rng.permutation(len(self.sequences)), self.num_batches(epoch) * self.global_batch_size)
        pool = 32 * self.global_batch_size
        pools = [order[first : first + pool] for first in range(0, len(order), pool)]
        batches = [pool[np.argsort(self._lengths[pool], kind="stable")] for pool in pools]
        return rng.permutation(np.concatenate(batches).reshape(-1, self.global_batch_size))


def label_sequences(
    task: Task[Any, Any, Any, Any], examples: Sequence[Any]
) -> tuple[list[tuple[Features, tuple[int, ...]]], int]:
    """Features of all examples with their labels, and how many examples had to be left out.

    Examples of spans are left out whose answer does not stand where they say.
    """
    usable = [example for example in examples if not isinstance(example, SpanExample) or _answer_is_in_place(example)]
    sequences: list[tuple[Features, tuple[int, ...]]] = []
    for example, windows in zip(usable, task.encode(usable), strict=True):
        for window in windows:
            if isinstance(example, ClassificationExample):
                label: tuple[int, ...] = (task.settings.labels.index(example.label),)
            else:
                label = answer_positions(example, window)
            sequences.append((window, label))
    return sequences, len(examples) - len(usable)


def answer_positions(example: SpanExample, window: Window) -> tuple[int, int]:
    """First and last token of the answer; (0, 0), that is [CLS], when the window does not show all of it.

    Source: convert_examples_to_features of google-research/bert run_squad.py.
    """
    if not example.answers:
        return 0, 0
    start, end = example.answer_start, example.answer_start + len(example.answers[0])
    inside = window.in_context & (window.offsets[:, 1] > start) & (window.offsets[:, 0] < end)
    tokens = np.flatnonzero(inside)
    if not len(tokens) or window.offsets[tokens[0], 0] > start or window.offsets[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])


def _answer_is_in_place(example: SpanExample) -> bool:
    if not example.answers:
        return True
    answer = example.answers[0]
    return bool(answer) and example.context[example.answer_start : example.answer_start + len(answer)] == answer


def classification_loss(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Cross entropy, summed over sequences."""
    logits = network(**batch.inputs)["logits"].float()
    return {"loss": F.cross_entropy(logits, batch.targets["labels"][:, 0], reduction="sum")}


def span_loss(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Mean of the cross entropies of start and end, summed over sequences. Padding takes no part in the softmax, so
    that the loss does not depend on how sequences are batched."""
    outputs = network(**batch.inputs)
    padding = batch.inputs["attention_mask"] == 0
    losses = [
        F.cross_entropy(outputs[name].float().masked_fill(padding, -torch.inf), labels, reduction="sum")
        for name, labels in zip(("start_logits", "end_logits"), batch.targets["labels"].unbind(1), strict=True)
    ]
    return {"loss": torch.stack(losses).mean()}


def finetune(recipe: FinetuneRecipe, world: World) -> Path:
    """Fine-tune, or go on with it.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: for data or a checkpoint that cannot be used, or a run that was started differently.
    """
    run = Run(recipe.run_dir, world)
    tokenizer = load_tokenizer(recipe.checkpoint)
    read = lambda paths: read_examples(recipe.task, paths, columns=recipe.columns, tokenizer=tokenizer)  # noqa: E731
    examples, dev = read(recipe.train), read(recipe.dev) if recipe.dev else []
    task = create_task(recipe.task, tokenizer, task_settings(recipe, examples, dev))
    provenance = _provenance(recipe)
    run.check_recipe(recipe_fields(recipe) | {"data": provenance["data"]}, may_differ=_MAY_DIFFER)
    if run.checkpoint_path.exists():
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = _create(recipe, task)
    sequences, num_left_out = label_sequences(task, examples)
    if not sequences:
        raise ValueError(f"no example of `{recipe.train[0]}` can be used: no answer stands at its answer_start")
    data = FinetuningData(
        sequences, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=tokenizer.pad_id
    )
    if world.is_main:
        note = f", {num_left_out} left out (the answer does not stand at answer_start)" if num_left_out else ""
        print(f"{len(examples):,} examples, {len(sequences):,} sequences{note}", flush=True)
        _note_new_positions(recipe, task.settings)
    num_steps = max(1, round(recipe.num_epochs * data.num_batches(0)))
    some_dev = dev[: recipe.eval_examples]
    train(
        model,
        [Phase(data=data)],
        classification_loss if recipe.task == "classification" else span_loss,
        num_steps=num_steps,
        settings=recipe,
        run=run,
        evaluation=Evaluation(
            scores=lambda: task.score(some_dev, predict(task, some_dev, torch_run(model, world.device))),
            every=max(1, num_steps // 4),
        )
        if dev
        else None,
        label="fine-tune",
    )
    if world.is_main:
        scores = _final_scores(task, model, examples, dev, world) if dev else {}
        card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance=provenance)
        save_checkpoint(run.checkpoint_path, model.cpu(), tokenizer_from=recipe.checkpoint, card=card)
        plot_run(recipe.run_dir)
        run.drop_states()
        if scores:
            print(format_scores({name: row for name, row in scores.items() if isinstance(row, dict)}))
    world.barrier()
    return run.checkpoint_path


_MAY_DIFFER = (
    "run_dir",
    "checkpoint",
    "train",
    "dev",
    "micro_batch_size",
    "log_every",
    "checkpoint_every",
    "keep_last",
)


def task_settings(recipe: FinetuneRecipe, examples: Sequence[Any], dev: Sequence[Any]) -> TaskSettings:
    """The settings of the task, from the recipe and the data.

    Raises:
        ValueError: when max_seq_length is beyond the checkpoint's positions, or dev has a label that train lacks.
    """
    max_positions = read_shape(recipe.checkpoint).max_position_embeddings
    default = 128 if recipe.task == "classification" else 384
    max_seq_length = recipe.max_seq_length or min(default, max_positions)
    if max_seq_length > max_positions:
        raise ValueError(f"max_seq_length `{max_seq_length}` is above the checkpoint's {max_positions} positions")
    if recipe.task == "classification":
        labels = tuple(sorted({example.label for example in examples}))
        unknown = sorted({example.label for example in dev} - set(labels))
        if unknown:
            raise ValueError(f"label `{unknown[0]}` of {recipe.dev[0]} does not occur in the training data")
        return ClassificationSettings(max_seq_length=max_seq_length, labels=labels)
    return SpanSettings(
        max_seq_length=max_seq_length,
        doc_stride=recipe.doc_stride,
        max_query_length=recipe.max_query_length,
        max_answer_length=recipe.max_answer_length,
        unanswerable=any(not example.answers for example in examples),
        null_threshold=recipe.null_threshold,
    )


def _note_new_positions(recipe: FinetuneRecipe, settings: TaskSettings) -> None:
    card = None if recipe.from_scratch else read_task_card(recipe.checkpoint)
    if card and card.settings.max_seq_length < settings.max_seq_length:
        print(
            f"note: `{recipe.checkpoint}` was trained on up to {card.settings.max_seq_length} tokens, here are up to "
            f"{settings.max_seq_length}; positions beyond are new to it (pretrain longer, or lower --max-seq-length)",
            flush=True,
        )


def _create(recipe: FinetuneRecipe, task: Task[Any, Any, Any, Any]) -> BertModel:
    num_labels = len(getattr(task.settings, "labels", ())) or None
    dropout = recipe.dropout
    if recipe.from_scratch:
        return create_model(task.name, read_shape(recipe.checkpoint), num_labels=num_labels or 2, dropout=dropout)
    return load_model(recipe.checkpoint, task.name, num_labels=num_labels, new_head=True, dropout=dropout)


def _provenance(recipe: FinetuneRecipe) -> dict[str, Any]:
    before = read_task_card(recipe.checkpoint)
    return {
        **(before.provenance if before else {}),
        "checkpoint": {"name": recipe.checkpoint.resolve().parent.name, "sha256": checkpoint_digest(recipe.checkpoint)},
        "data": {path.name: sha256(path) for path in (*recipe.train, *recipe.dev)},
        "recipe": recipe_fields(recipe),
        "torch": torch.__version__,
    }


def _final_scores(
    task: Task[Any, Any, Any, Any], model: BertModel, examples: Sequence[Any], dev: Sequence[Any], world: World
) -> dict[str, Any]:
    scores = task.score(dev, predict_with_progress(task, dev, torch_run(model, world.device)))
    name, baseline_scores = baseline(task.name, examples, dev, task.tokenizer)
    return {"dev": scores, name: baseline_scores, "num_dev_examples": len(dev)}


@command
def main() -> None:
    """Command line."""
    recipe = parse(FinetuneRecipe, "training.finetune", __doc__)
    with world() as peers:
        checkpoint = finetune(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
