"""Fine-tune a checkpoint on labelled data of one of the tasks (section 3.2 of the paper).

    python -m training.finetune classification --checkpoint runs/mini/checkpoint --train a.tsv --dev b.tsv --run-dir a
    python -m training.finetune spans --checkpoint runs/mini/checkpoint --train a.json --dev b.json --run-dir b

The checkpoint may be ours or any Hugging Face directory of a supported encoder. The same command resumes.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import tyro

from tasks import TASKS, AnyTask, create_task
from tasks.base import TaskSettings
from tasks.batching import predict
from tasks.features import Features
from tasks.json_files import read_json
from tasks.registry import LabelledTask
from tasks.spans import Spans, best_null_threshold
from training.ablations.model import Combination, change_config, num_combined_layers
from training.bounds import COUNT, EPOCHS, FRACTION, LEARNING_RATE, NOT_NEGATIVE, TOKENS, refuse_unused
from training.checkpoint import create_model, labels_of, load_model, load_tokenizer, read_config, read_shape
from training.command import command, parse
from training.data.columns import Columns
from training.data.descriptions import (
    are_all_pairs,
    describe_examples,
    describe_sequences,
    note_overlap,
    pair_flags,
    warn_of_labels,
)
from training.data.examples import Examples, encode_examples
from training.data.finetuning import FinetuningData, label_examples
from training.data.input_warnings import report_inputs
from training.data.labelled import read_examples
from training.evaluate import format_scores, predict_with_progress, torch_run
from training.hub import resolve_on_all
from training.loop.distributed import World, world
from training.loop.recipe import RECIPE_FILE, RecipeRecord, stage_of
from training.loop.result import write_result
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Phase, Progress, Stage
from training.model.config import EncoderConfig
from training.model.heads import BertForSequenceRegression, BertModel
from training.objectives.base import LabelledFeatures, TaskOptions, all_label_names, find_unknown_label
from training.objectives.registry import OBJECTIVES, best_baseline
from training.objectives.regression import standardise_head
from training.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine
from training.reports.grid_report import Outcome, Setting, metric_of
from training.sentence_transformers import checkpoint_directory
from training.task_card import TaskCard, read_task_card
from training.weights import read_weights

_TASK_FIELDS = ("doc_stride", "max_query_length", "max_answer_length", "null_threshold", "thresholds")
"""Recipe fields that are settings of some tasks only."""


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
    """Checkpoint to start from: a directory, ours or of a family in docs/reference/encoders.md, or a repository of the
    Hugging Face hub, as org/name or org/name@revision."""
    train: tuple[Path, ...]
    """Files: .tsv, .csv, .jsonl, .parquet; SQuAD's .json (spans); CoNLL (tagging); or a data set of the hub of
    Hugging Face, as hf:ID,config=NAME,split=NAME."""
    dev: tuple[Path, ...] = ()
    """Held-out data to score on, in the same format."""
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
    layers: tuple[int, ...] | None = None
    """Layers whose hidden states the head reads: 0 for the embeddings, 1 for the first layer, -1 for the last. None for
    those of the checkpoint; in BERT the last. A network with other values of layers, combine or bilstm than BERT's
    cannot be exported."""
    combine: Combination | None = None
    """Combination of several layers: concatenated, added, or averaged with learned weights."""
    bilstm: Annotated[int, NOT_NEGATIVE] | None = None
    """Size of each direction of a BiLSTM of two layers below the head (the paper: 768); 0 for none."""
    num_epochs: Annotated[float, EPOCHS] = 3.0
    """Passes through the training data."""
    learning_rate: Annotated[float, LEARNING_RATE] | None = None  # type: ignore[assignment]  # `finetune` sets it
    """Peak of the learning rate. None: by the hidden size of the encoder, 3e-4 up to 256 (bertline-mini), 1e-4 up to
    512, 5e-5 up to 768 (BERT-base), 2e-5 above."""
    checkpoint_every: Annotated[int, NOT_NEGATIVE] = 200
    eval_examples: Annotated[int, COUNT] = 500
    """Random dev examples for the curve, scored four times during training. The final score is on all dev examples."""
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
    with the best F1 on dev."""
    thresholds: tuple[Annotated[float, FRACTION], ...] | Literal["auto"] = "auto"
    """Multi-label classification: smallest score that selects a label, one number for all labels or one for each, in
    the order of their names; `auto` for those with the best F1 of each label on dev (0.5 without dev)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _TASK_FIELDS:
            tasks = [task for task in OBJECTIVES if hasattr(TASKS[task].settings_type, name)]
            if self.task not in tasks:
                refuse_unused(self, name, f"is for {' and '.join(tasks)}")
        if self.frozen and (self.unfreeze_every or self.layer_decay != 1):
            raise ValueError("a frozen encoder has no layers that train: leave out unfreeze_every and layer_decay")


def finetune(recipe: FinetuneRecipe, world: World) -> Path:
    """Fine-tune, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data or checkpoint cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        return _finetune(with_learning_rate(recipe, run), run)


def _finetune(recipe: FinetuneRecipe, run: RunDirectory) -> Path:
    data = _read_data(recipe)
    digests = input_digests(recipe.checkpoint, recipe.train, recipe.dev)
    if not run.begin(RecipeRecord(recipe, digests, paths=PATH_FIELDS)):
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = _create_model(recipe, data.task)
    encoded = _encode(recipe, data)
    cuts = _report_data(recipe, data, encoded) if run.world.is_main else {}
    batches = _batches(recipe, data, encoded)
    progress = _train(recipe, run, data, model, batches)
    if run.world.is_main:
        origin = provenance(
            recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, digests, text_pairs=are_all_pairs(data.train)
        )
        origin |= training_extent(progress, batches.num_batches(0)) | training_machine(run.world) | {"cuts": cuts}
        _write_result(recipe, run, data, model, origin)
    run.world.barrier()
    return run.checkpoint_path


# Learning rate

DEFAULT_LEARNING_RATES = ((256, 3e-4), (512, 1e-4), (768, 5e-5), (math.inf, 2e-5))
"""Largest hidden size, and the learning rate up to it: measured for 256 (docs/results.md); of the BERT paper for 768
and 1,024; in between for 512."""


def default_learning_rate(hidden_size: int) -> float:
    """Return the default learning rate of fine-tuning for the hidden size of an encoder."""
    return next(rate for size, rate in DEFAULT_LEARNING_RATES if hidden_size <= size)


def with_learning_rate(recipe: FinetuneRecipe, run: RunDirectory) -> FinetuneRecipe:
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


# Data


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Examples of a run, and the task that encodes them."""

    task: AnyTask
    train: Examples
    dev: Examples
    """Empty without dev data."""


def _read_data(recipe: FinetuneRecipe) -> _Data:
    tokenizer = load_tokenizer(recipe.checkpoint)
    train, dev = (
        read_examples(recipe.task, paths, columns=recipe.columns, tokenizer=tokenizer) if paths else Examples()
        for paths in (recipe.train, recipe.dev)
    )
    settings = task_settings(recipe, train, dev)
    for examples in (train, dev):
        if problem := OBJECTIVES[recipe.task].mismatch(settings, examples):
            raise ValueError(problem)
    task = create_task(recipe.task, tokenizer, settings)
    return _Data(task=task, train=train, dev=dev)


def task_settings(recipe: FinetuneRecipe, train: Examples, dev: Examples) -> TaskSettings:
    """Return the settings of the task, from the recipe and the data.

    Raises:
        ValueError: if max_seq_length exceeds the checkpoint's positions, if the training data have a single label, or
            if dev has a label that the training data lack, or has no pairs although the training data have.
    """
    max_positions = read_shape(recipe.checkpoint).num_positions
    objective = OBJECTIVES[recipe.task]
    max_seq_length = recipe.max_seq_length or min(objective.default_max_seq_length, max_positions)
    if max_seq_length > max_positions:
        raise ValueError(f"max_seq_length `{max_seq_length}` is above the checkpoint's {max_positions} positions")
    labels = all_label_names(objective, train)
    if unknown := find_unknown_label(objective, dev, labels):
        location, label = unknown
        hints = filter(None, [f"label `{label}` does not occur in the training data", objective.label_warning(labels)])
        raise ValueError(f"{location}: {'; '.join(hints)}")
    if dev and any(pair_flags(train)) and not any(pair_flags(dev)):
        raise ValueError(f"`{recipe.dev[0]}` has single texts, but the training data have pairs (--columns.text-pair)")
    if len(labels) == 1:
        raise ValueError(f"the only label in `{recipe.train[0]}` is `{labels[0]}`; at least two are needed")
    return objective.settings(task_options(recipe, max_seq_length), train)


def task_options(recipe: FinetuneRecipe, max_seq_length: int) -> TaskOptions:
    """Return the options from which an objective makes the settings of its task."""
    return TaskOptions(
        max_seq_length=max_seq_length,
        doc_stride=recipe.doc_stride,
        max_query_length=recipe.max_query_length,
        max_answer_length=recipe.max_answer_length,
        null_threshold=recipe.null_threshold,
        thresholds=recipe.thresholds,
        has_dev=bool(recipe.dev),
    )


@dataclass(frozen=True, kw_only=True)
class _EncodedData:
    """Features of the examples."""

    train: Sequence[LabelledFeatures]
    unusable: Sequence[str]
    """Locations of training examples that are left out."""
    dev: Sequence[Sequence[Features]]
    """Features of each dev example."""


def _encode(recipe: FinetuneRecipe, data: _Data) -> _EncodedData:
    """Encode all examples. Dev examples are encoded before training, so that invalid ones raise immediately."""
    train, unusable = label_examples(data.task, data.train)
    dev = encode_examples(data.task, data.dev)
    if not train:
        reason = OBJECTIVES[recipe.task].unusable_reason
        raise ValueError(f"no example can be used: {reason}; the first: {unusable[0]}")
    return _EncodedData(train=train, unusable=unusable, dev=dev)


def _batches(recipe: FinetuneRecipe, data: _Data, encoded: _EncodedData) -> FinetuningData:
    return FinetuningData(
        encoded.train,
        OBJECTIVES[recipe.task],
        global_batch_size=recipe.global_batch_size,
        seed=recipe.seed,
        pad_id=data.task.tokenizer.pad_id,
    )


# Messages about the data


def _report_data(recipe: FinetuneRecipe, data: _Data, encoded: _EncodedData) -> dict[str, Any]:
    """Describe the data, with warnings and notes.

    Returns:
        Records of truncated examples, for the task card.
    """
    sequences = describe_sequences(encoded.train, encoded.unusable, OBJECTIVES[recipe.task].unusable_reason)
    print(f"{describe_examples(data.task, data.train)}; {sequences}", flush=True)
    warn_of_labels(data.task, {"training": data.train, "dev": data.dev})
    if not data.dev:
        print("nothing will be scored: there are no dev data", flush=True)
    features = {"training sequences": [item.features for item in encoded.train], "dev examples": encoded.dev}
    cuts = {name: report_inputs(name, recipe.checkpoint, data.task, found) for name, found in features.items() if found}
    note_overlap(data.train, data.dev)
    _note_new_positions(recipe, data.task.settings)
    _note_new_classifier(recipe, data.task)
    return cuts


def _note_new_positions(recipe: FinetuneRecipe, settings: TaskSettings) -> None:
    """Print a note if sequences can be longer than those that the checkpoint was trained on."""
    card = None if recipe.from_scratch else read_task_card(recipe.checkpoint)
    if card and card.settings.max_seq_length < settings.max_seq_length:
        print(
            f"note: `{recipe.checkpoint}` was trained on up to {card.settings.max_seq_length} tokens, here are up to "
            f"{settings.max_seq_length}; positions beyond are new to it (pretrain longer, or lower --max-seq-length)",
            flush=True,
        )


def _note_new_classifier(recipe: FinetuneRecipe, task: AnyTask) -> None:
    """Print a note if the checkpoint has a classifier that is not used."""
    has_one = re.search("Classification|MultipleChoice", str(read_config(recipe.checkpoint).get("architectures")))
    if has_one and task.name != "spans" and not recipe.from_scratch and not _knows_labels(recipe.checkpoint, task):
        print(f"note: the classifier of `{recipe.checkpoint}` has other labels or another task; a new one is trained")


# Network


def _create_model(recipe: FinetuneRecipe, task: AnyTask) -> BertModel:
    model = _new_model(recipe, task) if recipe.from_scratch else _pretrained_model(recipe, task)
    if recipe.frozen:
        model.bert.freeze()
    return model


def _new_model(recipe: FinetuneRecipe, task: AnyTask) -> BertModel:
    return create_model(task.name, _shape(recipe), num_labels=_num_labels(task) or 2, dropout=recipe.dropout)


def _pretrained_model(recipe: FinetuneRecipe, task: AnyTask) -> BertModel:
    _shape(recipe)  # raises if the recipe's layers are impossible
    model = load_model(
        recipe.checkpoint,
        task.name,
        num_labels=_num_labels(task),
        new_head=True,
        without=() if _knows_labels(recipe.checkpoint, task) else ("classifier.",),
        dropout=recipe.dropout,
        changes=_shape_changes(recipe),
    )
    if isinstance(model, BertForSequenceRegression) and _has_head_of(recipe.checkpoint, model):
        standardise_head(model, task.settings)
    return model


def _num_labels(task: AnyTask) -> int | None:
    return len(getattr(task.settings, "labels", ())) or None


def _has_head_of(checkpoint: Path, model: BertForSequenceRegression) -> bool:
    """Return whether the head of a network is the checkpoint's, not a new one."""
    weight = read_weights(checkpoint).get("classifier.weight")
    return weight is not None and torch.equal(weight, model.classifier.weight)


def _knows_labels(checkpoint: Path, task: AnyTask) -> bool:
    """Return whether a checkpoint's classifier has the labels of the task, in the same order."""
    card, labels = read_task_card(checkpoint), getattr(task.settings, "labels", ())
    return (card is None or card.task == task.name) and (not labels or labels_of(read_config(checkpoint)) == labels)


def _shape(recipe: FinetuneRecipe) -> EncoderConfig:
    """Return the shape of the network.

    Raises:
        ValueError: for a layer that does not exist, or a combination of a single layer.
    """
    shape = change_config(read_shape(recipe.checkpoint), _shape_changes(recipe))
    if recipe.combine and num_combined_layers(shape) == 1:
        raise ValueError(f"--combine {recipe.combine} needs several --layers, such as -1 -2 -3 -4")
    return shape


def _shape_changes(recipe: FinetuneRecipe) -> dict[str, Any]:
    """Return the fields of the shape that replace the checkpoint's."""
    given = {"state_layers": recipe.layers, "state_combination": recipe.combine, "bilstm_size": recipe.bilstm}
    return {name: value for name, value in given.items() if value is not None}


# Training, scores, result


def _train(
    recipe: FinetuneRecipe, run: RunDirectory, data: _Data, model: BertModel, batches: FinetuningData
) -> Progress:
    num_steps = max(1, round(recipe.num_epochs * batches.num_batches(0)))
    return train(
        model,
        [Phase(data=batches)],
        OBJECTIVES[recipe.task].losses,
        num_steps=num_steps,
        settings=recipe,
        run=run,
        evaluation=_evaluation(recipe, data, model, run.world, every=max(1, num_steps // 4)) if data.dev else None,
        label="fine-tune",
    )


def _evaluation(recipe: FinetuneRecipe, data: _Data, model: BertModel, world: World, *, every: int) -> Evaluation:
    """Return the evaluation for the curve, on a sample of the dev examples.

    Thresholds are chosen on the sample each time, as they are on all dev examples in the end.
    """
    task, sample = data.task, data.dev.sample(recipe.eval_examples)

    def scores() -> dict[str, float]:
        with OBJECTIVES[task.name].evaluation_head(model, task):
            predictions = predict(task, sample, torch_run(model, task, world.device))
        tuned, found = _tuned(recipe, task, sample, predictions)
        return tuned.score(sample, found)

    return Evaluation(scores=scores, every=every)


def _write_result(
    recipe: FinetuneRecipe, run: RunDirectory, data: _Data, model: BertModel, origin: dict[str, Any]
) -> None:
    """Score all dev examples, write the checkpoint, and print the scores."""
    task = data.task
    scores: dict[str, Any] = {}
    with OBJECTIVES[recipe.task].evaluation_head(model, task):
        if data.dev:
            task, scores = _score(recipe, data, model, run.world)
        card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance=origin)
        write_result(run, model, tokenizer_from=recipe.checkpoint, card=card)
    if scores:
        print(format_scores({name: row for name, row in scores.items() if isinstance(row, dict)}))
        _warn_of_failure(recipe, scores)


def _score(recipe: FinetuneRecipe, data: _Data, model: BertModel, world: World) -> tuple[AnyTask, dict[str, Any]]:
    """Score all dev examples.

    Returns:
        The task, with the null threshold found by `--null-threshold auto`, or with the thresholds of its labels; and
        scores by row, baseline last.
    """
    task, dev = data.task, data.dev
    predictions = predict_with_progress(task, dev, torch_run(model, task, world.device))
    rows = {"dev": task.score(dev, predictions)}
    tuned, found = _tuned(recipe, task, dev, predictions)
    if tuned is not task:
        before = "null threshold 0" if isinstance(task, Spans) else "thresholds 0.5"
        rows = {"dev": tuned.score(dev, found), f"dev, {before}": rows["dev"]}
        task = tuned
    if isinstance(task, Spans) and recipe.null_threshold == "auto":
        print(f"null threshold with the best F1 on dev: {task.settings.null_threshold:.3f}", flush=True)
    name, baseline_scores = best_baseline(task.name, data.train, dev, task.tokenizer)
    return task, {**rows, name: baseline_scores, "num_dev_examples": len(dev)}


def _tuned(
    recipe: FinetuneRecipe, task: AnyTask, dev: Examples, predictions: Sequence[Any]
) -> tuple[AnyTask, Sequence[Any]]:
    """Return the task with the thresholds that the recipe leaves to dev, and its predictions with them."""
    if isinstance(task, Spans) and recipe.null_threshold == "auto":
        tuned = Spans(task.tokenizer, replace(task.settings, null_threshold=best_null_threshold(dev, predictions)))
        return tuned, [tuned.decide(prediction) for prediction in predictions]
    return OBJECTIVES[task.name].tuned(task, dev, predictions)


def _warn_of_failure(recipe: FinetuneRecipe, scores: Mapping[str, Any]) -> None:
    """Warn if the score on dev is not above the baseline."""
    assert recipe.learning_rate is not None
    setting = Setting(recipe.learning_rate, recipe.global_batch_size, recipe.num_epochs)
    outcome = Outcome(name=recipe.run_dir.name, setting=setting, seed=recipe.seed, scores=scores)
    if failure := outcome.failure(metric_of(outcome.scores["dev"], None)):
        print(f"warning: {failure}: train longer, or try other learning rates and seeds (make grid)", file=sys.stderr)


@command
def main() -> None:
    """Command line."""
    recipe = parse(FinetuneRecipe, "training.finetune", __doc__)
    with world() as peers:
        recipe = replace(recipe, checkpoint=checkpoint_directory(resolve_on_all(recipe.checkpoint, peers)))
        checkpoint = finetune(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
