"""Fine-tune a checkpoint on labelled data of one of the tasks (section 3.2 of the paper).

    python -m training.finetune classification --checkpoint runs/mini/checkpoint --train a.tsv --dev b.tsv --run-dir a
    python -m training.finetune spans --checkpoint runs/mini/checkpoint --train a.json --dev b.json --run-dir b

The checkpoint may be ours or any Hugging Face BERT directory. The same command resumes.
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
from training.bounds import COUNT, EPOCHS, LEARNING_RATE, NOT_NEGATIVE, TOKENS, refuse_unused
from training.checkpoint import create_model, labels_of, load_model, load_tokenizer, read_config, read_shape
from training.command import command, parse
from training.data.cells import to_number
from training.data.columns import Columns
from training.data.examples import Examples, encode_examples
from training.data.finetuning import FinetuningData, label_examples
from training.data.input_warnings import report_inputs
from training.data.labelled import read_examples
from training.evaluate import format_scores, predict_with_progress, torch_run
from training.loop.distributed import World, world
from training.loop.recipe import RECIPE_FILE, RecipeRecord, stage_of
from training.loop.result import write_result
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Phase, Stage
from training.model.encoder import EncoderConfig
from training.model.heads import BertForSequenceRegression, BertModel
from training.objectives.base import LabelledFeatures, TaskOptions, all_label_names, find_unknown_label
from training.objectives.registry import OBJECTIVES, best_baseline
from training.objectives.regression import standardise_head
from training.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine
from training.reports.grid_report import Outcome, Setting, metric_of
from training.task_card import TaskCard, read_task_card
from training.weights import read_weights

_TASK_SETTINGS = ("doc_stride", "max_query_length", "max_answer_length", "null_threshold")
"""Fields of the recipe that are settings of some tasks only."""


@dataclass(frozen=True, kw_only=True)
class FinetuneRecipe(LoopSettings):
    """Fine-tune a checkpoint on labelled data."""

    stage: ClassVar[Stage] = "fine-tuning"

    task: Annotated[
        LabelledTask,
        tyro.conf.Positional,
        tyro.conf.arg(metavar="TASK"),
    ]
    """What to learn:
    - classification: a label for a text, or for a pair
    - spans: where in a text an answer stands (SQuAD)
    - regression: a number for a text, or for a pair
    - multiple-choice: which of several answers is right
    - tagging: a tag for each word, as for names (CoNLL)"""
    checkpoint: Path
    """Checkpoint to start from: ours, or any Hugging Face BERT directory."""
    train: tuple[Path, ...]
    """Files: .tsv, .csv, .jsonl, .parquet; SQuAD's .json (spans); CoNLL (tagging); or a data set of the hub of
    Hugging Face, as hf:ID,config=NAME,split=NAME."""
    dev: tuple[Path, ...] = ()
    """Held-out data to score on, in the same format."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    compile: Literal["auto", "on", "off"] = "off"
    """torch.compile; auto is on for GPUs. Each length of batch is compiled by itself, which pays on long runs only."""
    columns: Columns = field(default_factory=Columns)
    """Columns of the training and dev data."""
    from_scratch: bool = False
    """Start from random weights, with the checkpoint's shape and vocabulary, to measure what pretraining is worth."""
    frozen: bool = False
    """Train the head only, on frozen hidden states (the feature-based approach, section 5.3 of the paper)."""
    layers: tuple[int, ...] | None = None
    """Whose hidden states the head takes: 0 for the embeddings, layers from 1 up, or from the last, -1, down; None for
    the checkpoint's own, in BERT -1. What is no BERT, by these or the next two, cannot be exported."""
    combine: Combination | None = None
    """How several of them become one: side by side, added up, or averaged with learnt weights."""
    bilstm: Annotated[int, NOT_NEGATIVE] | None = None
    """Size of each direction of a BiLSTM of two layers under the head (the paper: 768); 0 for none."""
    num_epochs: Annotated[float, EPOCHS] = 3.0
    """Passes through the training data."""
    learning_rate: Annotated[float, LEARNING_RATE] | None = None  # type: ignore[assignment]  # `finetune` sets it
    """Peak of the learning rate. None: by the hidden size of the encoder, 3e-4 up to 256 (bertline-mini), 1e-4 up to
    512, 5e-5 up to 768 (BERT-base), 2e-5 above."""
    checkpoint_every: Annotated[int, NOT_NEGATIVE] = 200
    eval_examples: Annotated[int, COUNT] = 500
    """Dev examples for the curve, drawn at random, scored four times on the way; the final score is of all."""
    max_seq_length: Annotated[int, TOKENS] | None = None
    """Longest sequence in tokens; None for 384 in spans, 128 in the other tasks, or what the checkpoint can."""
    doc_stride: Annotated[int, COUNT] = 128
    """Spans and tagging: tokens from one window of a long text to the next, at most half a window."""
    max_query_length: Annotated[int, COUNT] = 64
    """Spans: longest question in tokens."""
    max_answer_length: Annotated[int, COUNT] = 30
    """Spans: longest answer in tokens."""
    null_threshold: float | Literal["auto"] = 0.0
    """Spans with unanswerable questions: how far "no answer" must win; `auto` for what gives the best F1 on dev."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in _TASK_SETTINGS:
            tasks = [task for task in OBJECTIVES if hasattr(TASKS[task].settings_type, name)]
            if self.task not in tasks:
                refuse_unused(self, name, f"is of {' and '.join(tasks)}")
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


DEFAULT_LEARNING_RATES = ((256, 3e-4), (512, 1e-4), (768, 5e-5), (math.inf, 2e-5))
"""Learning rate for encoders up to a hidden size: measured for 256 (docs/results.md); of the BERT paper for 768 and
1,024; between them for 512."""


def default_learning_rate(hidden_size: int) -> float:
    """Return the default learning rate of fine-tuning for the hidden size of an encoder."""
    return next(rate for size, rate in DEFAULT_LEARNING_RATES if hidden_size <= size)


def with_learning_rate(recipe: FinetuneRecipe, run: RunDirectory) -> FinetuneRecipe:
    """Set the learning rate if the recipe has none: that of the run if it is resumed, else the default."""
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


def _finetune(recipe: FinetuneRecipe, run: RunDirectory) -> Path:
    world, objective = run.world, OBJECTIVES[recipe.task]
    tokenizer = load_tokenizer(recipe.checkpoint)
    read_files = lambda paths: read_examples(recipe.task, paths, columns=recipe.columns, tokenizer=tokenizer)  # noqa: E731
    examples, dev = read_files(recipe.train), read_files(recipe.dev) if recipe.dev else Examples()
    task = create_task(recipe.task, tokenizer, task_settings(recipe, examples, dev))
    found = input_digests(recipe.checkpoint, recipe.train, recipe.dev)
    if not run.begin(RecipeRecord(recipe, found, paths=PATH_FIELDS)):
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = _create(recipe, task)
    items, left_out = label_examples(task, examples)
    dev_features = encode_examples(task, dev)  # or it says what is wrong, before the training rather than after it
    if not items:
        raise ValueError(f"no example can be used: {objective.unusable_reason}; the first: {left_out[0]}")
    data = FinetuningData(
        items, objective, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=tokenizer.pad_id
    )
    cuts = _remark_on_data(recipe, task, examples, items, left_out, dev, dev_features) if world.is_main else {}
    num_steps = max(1, round(recipe.num_epochs * data.num_batches(0)))
    some_dev = dev.sample(recipe.eval_examples)
    progress = train(
        model,
        [Phase(data=data)],
        objective.losses,
        num_steps=num_steps,
        settings=recipe,
        run=run,
        evaluation=Evaluation(
            scores=lambda: _scores_on_the_way(task, model, some_dev, world),
            every=max(1, num_steps // 4),
        )
        if dev
        else None,
        label="fine-tune",
    )
    if world.is_main:
        with objective.evaluation_head(model, task):
            task, scores = _final_scores(recipe, task, model, examples, dev, world) if dev else (task, {})
            data_paths, pairs = (*recipe.train, *recipe.dev), _pairs(examples)
            origin = provenance(recipe.checkpoint, data_paths, recipe, found, text_pairs=bool(pairs) and all(pairs))
            origin |= training_extent(progress, data.num_batches(0)) | training_machine(world) | {"cuts": cuts}
            card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance=origin)
            write_result(run, model, tokenizer_from=recipe.checkpoint, card=card)
        if scores:
            print(format_scores({name: row for name, row in scores.items() if isinstance(row, dict)}))
            _warn_of_failure(recipe, scores)
    world.barrier()
    return run.checkpoint_path


def _remark_on_data(
    recipe: FinetuneRecipe,
    task: AnyTask,
    examples: Examples,
    items: Sequence[LabelledFeatures],
    left_out: Sequence[str],
    dev: Examples,
    dev_features: Sequence[Sequence[Features]],
) -> dict[str, Any]:
    """Print what was read, with warnings about it.

    Returns:
        The cuts of training and dev data, for the task card.
    """
    objective = OBJECTIVES[recipe.task]
    num_sequences = sum(len(item.features) for item in items)
    note = f", {len(left_out):,} left out ({objective.unusable_reason}; the first: {left_out[0]})" if left_out else ""
    print(f"{_describe(task, examples)}; {num_sequences:,} sequences{note}", flush=True)
    if doubt := _doubt(task.name, getattr(task.settings, "labels", ())):
        print(f"warning: {doubt}", file=sys.stderr)
    for name, data in (("training", examples), ("dev", dev)):
        for line in objective.warnings(task, data):
            print(f"warning: {name} data: {line}", file=sys.stderr)
    if not dev:
        print("nothing will be scored: there are no dev data", flush=True)
    read: dict[str, Sequence[Sequence[Features]]] = {
        "training sequences": [item.features for item in items],
        "dev examples": dev_features,
    }
    cuts = {what: report_inputs(what, recipe.checkpoint, task, features) for what, features in read.items() if features}
    _note_known(examples, dev)
    _note_new_positions(recipe, task.settings)
    _note_new_classifier(recipe, task)
    return cuts


def _scores_on_the_way(task: AnyTask, model: BertModel, dev: Examples, world: World) -> dict[str, float]:
    with OBJECTIVES[task.name].evaluation_head(model, task):
        return task.score(dev, predict(task, dev, torch_run(model, task, world.device)))


def _describe(task: AnyTask, examples: Examples) -> str:
    """Describe the data that were read, so that a wrong column is noticed."""
    pairs = _pairs(examples)
    some = f", {sum(pairs):,} of them with a pair" if any(pairs) else ""
    kind = "" if not pairs else ": pairs of texts" if all(pairs) else f": texts{some}"
    labels = getattr(task.settings, "labels", ())
    named = f"; {len(labels)} labels ({', '.join(labels[:8])}{', …' if len(labels) > 8 else ''})" if labels else ""
    return f"{len(examples):,} examples{kind}{named}"


MANY_LABELS = 50


def _doubt(task: str, labels: Sequence[str]) -> str:
    """Describe labels that look like numbers rather than classes; "" for others."""
    numbers = [to_number(label) for label in labels]
    is_odd = len(labels) > MANY_LABELS or any(number % 1 for number in numbers)
    if task == "classification" and is_odd and all(map(math.isfinite, numbers)):
        return f"all {len(labels)} labels are numbers; if they say how much of something, the task is `regression`"
    return ""


def _pairs(examples: Examples) -> list[bool]:
    """Return for each example whether it is a pair of texts; nothing for tasks without pairs."""
    return [bool(example.text_pair) for example in examples if hasattr(example, "text_pair")]


def _warn_of_failure(recipe: FinetuneRecipe, scores: Mapping[str, Any]) -> None:
    assert recipe.learning_rate is not None
    setting = Setting(recipe.learning_rate, recipe.global_batch_size, recipe.num_epochs)
    outcome = Outcome(name=recipe.run_dir.name, setting=setting, seed=recipe.seed, scores=scores)
    if failure := outcome.failure(metric_of(outcome.scores["dev"], None)):
        print(f"warning: {failure}: train longer, or try other learning rates and seeds (make grid)", file=sys.stderr)


def task_settings(recipe: FinetuneRecipe, examples: Examples, dev: Examples) -> TaskSettings:
    """Return the settings of the task, from the recipe and the data.

    Raises:
        ValueError: when max_seq_length is beyond the checkpoint's positions, when there is but one label, or when dev
            has one that train lacks, or no pairs where train has them.
    """
    max_positions = read_shape(recipe.checkpoint).max_position_embeddings
    objective = OBJECTIVES[recipe.task]
    max_seq_length = recipe.max_seq_length or min(objective.default_max_seq_length, max_positions)
    if max_seq_length > max_positions:
        raise ValueError(f"max_seq_length `{max_seq_length}` is above the checkpoint's {max_positions} positions")
    known = all_label_names(objective, examples)
    if unknown := find_unknown_label(objective, dev, known):
        place, label = unknown
        doubt = _doubt(recipe.task, known)
        raise ValueError(
            f"{place}: label `{label}` does not occur in the training data" + (f"; {doubt}" if doubt else "")
        )
    if dev and any(_pairs(examples)) and not any(_pairs(dev)):
        raise ValueError(f"`{recipe.dev[0]}` has single texts, but the training data have pairs (--columns.text-pair)")
    if len(known) == 1:
        raise ValueError(f"the only label in `{recipe.train[0]}` is `{known[0]}`; two are needed to tell them apart")
    return objective.settings(task_options(recipe, max_seq_length), examples)


def task_options(recipe: FinetuneRecipe, max_seq_length: int) -> TaskOptions:
    """Return the options that the settings of the task are made of."""
    return TaskOptions(
        max_seq_length=max_seq_length,
        doc_stride=recipe.doc_stride,
        max_query_length=recipe.max_query_length,
        max_answer_length=recipe.max_answer_length,
        null_threshold=recipe.null_threshold,
        has_dev=bool(recipe.dev),
    )


def _note_known(examples: Examples, dev: Examples) -> None:
    """Print a note if dev examples are in the training data; labels and ids may differ."""
    known = {_input_of(example) for example in examples}
    if num_known := sum(_input_of(example) in known for example in dev):
        print(f"note: {num_known:,} of {len(dev):,} dev examples are in the training data, too", flush=True)


def _input_of(example: Any) -> Any:
    unread = {"id": "", "label": None, "tags": (), "answers": (), "answer_start": -1}
    return replace(example, **{name: value for name, value in unread.items() if hasattr(example, name)})


def _note_new_positions(recipe: FinetuneRecipe, settings: TaskSettings) -> None:
    card = None if recipe.from_scratch else read_task_card(recipe.checkpoint)
    if card and card.settings.max_seq_length < settings.max_seq_length:
        print(
            f"note: `{recipe.checkpoint}` was trained on up to {card.settings.max_seq_length} tokens, here are up to "
            f"{settings.max_seq_length}; positions beyond are new to it (pretrain longer, or lower --max-seq-length)",
            flush=True,
        )


def _note_new_classifier(recipe: FinetuneRecipe, task: AnyTask) -> None:
    has_one = re.search("Classification|MultipleChoice", str(read_config(recipe.checkpoint).get("architectures")))
    if has_one and task.name != "spans" and not recipe.from_scratch and not _knows_labels(recipe.checkpoint, task):
        print(f"note: the classifier of `{recipe.checkpoint}` is of other labels, or of another task; this one is new")


def _create(recipe: FinetuneRecipe, task: AnyTask) -> BertModel:
    num_labels = len(getattr(task.settings, "labels", ())) or None
    shape, dropout = _shape(recipe), recipe.dropout
    if recipe.from_scratch:
        model = create_model(task.name, shape, num_labels=num_labels or 2, dropout=dropout)
    else:
        model = load_model(
            recipe.checkpoint,
            task.name,
            num_labels=num_labels,
            new_head=True,
            without=() if _knows_labels(recipe.checkpoint, task) else ("classifier.",),
            dropout=dropout,
            changes=_states(recipe),
        )
        if isinstance(model, BertForSequenceRegression) and _has_its_head(recipe.checkpoint, model):
            standardise_head(model, task.settings)
    if recipe.frozen:
        model.bert.freeze()
    return model


def _has_its_head(checkpoint: Path, model: BertForSequenceRegression) -> bool:
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
        ValueError: for layers that there are not, or one layer that is to be combined.
    """
    shape = change_config(read_shape(recipe.checkpoint), _states(recipe))
    if recipe.combine and num_combined_layers(shape) == 1:
        raise ValueError(f"--combine {recipe.combine} needs several --layers, such as -1 -2 -3 -4")
    return shape


def _states(recipe: FinetuneRecipe) -> dict[str, Any]:
    """Return the fields of the shape that differ from the checkpoint's."""
    given = {"state_layers": recipe.layers, "state_combination": recipe.combine, "bilstm_size": recipe.bilstm}
    return {name: value for name, value in given.items() if value is not None}


def _final_scores(
    recipe: FinetuneRecipe,
    task: AnyTask,
    model: BertModel,
    examples: Sequence[Any],
    dev: Sequence[Any],
    world: World,
) -> tuple[AnyTask, dict[str, Any]]:
    """Return the task (with the null threshold that was searched, if asked for) and its scores."""
    predictions = predict_with_progress(task, dev, torch_run(model, task, world.device))
    rows = {"dev": task.score(dev, predictions)}
    if isinstance(task, Spans) and recipe.null_threshold == "auto":
        tuned = Spans(task.tokenizer, replace(task.settings, null_threshold=best_null_threshold(dev, predictions)))
        decided = [tuned.decide(prediction) for prediction in predictions]
        rows = {"dev": tuned.score(dev, decided), "dev, null threshold 0": rows["dev"]}
        print(f"null threshold with the best F1 on dev: {tuned.settings.null_threshold:.3f}", flush=True)
        task = tuned
    name, baseline_scores = best_baseline(task.name, examples, dev, task.tokenizer)
    return task, {**rows, name: baseline_scores, "num_dev_examples": len(dev)}


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
