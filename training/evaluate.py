"""Evaluate a checkpoint on a dev set, with the code that the server runs before and after the model.

    python -m training.evaluate runs/sst2/checkpoint --data dev.tsv --train train.tsv
    python -m training.evaluate runs/vectors/checkpoint --data stsb-dev.tsv

Embeddings are scored on pairs of texts: Spearman's correlation of their cosines with the similarities in `label`. For
sparse embeddings, dot products replace cosines; for token embeddings, MaxSim of the query `text` and the document
`text_pair`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from tasks import AnyTask
from tasks.batching import RunModel
from tasks.bundle.files import atomic_write
from training.checkpoint.evaluation import load_for_evaluation, predict_with_progress
from training.checkpoint.hub import recorded_name, resolve_checkpoint
from training.checkpoint.task_card import read_task_card
from training.command_line.command import command, parse
from training.data.cloze import MAX_PASSAGE_TOKENS
from training.data.columns import Columns, dev_columns, existing_columns
from training.data.examples import Examples, encode_examples
from training.data.input_warnings import report_inputs
from training.data.plausibility import report_doubts
from training.finetuning.data import pair_flags
from training.objectives.labelled import read_examples, read_similarities
from training.objectives.registry import best_baseline, check_kind, check_labels
from training.objectives.similarity import compares_pairs, evaluate_pairs, word_overlap
from training.reports.tables import ClassScores, format_class_scores, format_scores


@dataclass(frozen=True, kw_only=True)
class EvaluateRecipe:
    """Score a checkpoint on labelled data."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """Directory with a task card (training.finetune, training.contrastive or training.pretrain wrote it), a folder of
    sentence-transformers or PyLate, or such a repository of the Hugging Face hub, as org/name or org/name@revision."""
    data: tuple[Path, ...]
    """Files as for `--train` of training.finetune. For masked-lm: running text, up to 1,000 passages of each file. For
    embeddings: tables with columns `text`, `text_pair` and `label`, the similarity of both texts."""
    train: tuple[Path, ...] = ()
    """Training data; adds the scores of a baseline that is fitted to them."""
    columns: Columns = field(default_factory=Columns)
    """Columns of all data. By default, those of the training data that the data have."""
    predictions: Path | None = None
    """Write predictions here, one JSON object a line."""


def evaluate_predictions(
    recipe: EvaluateRecipe, task: AnyTask, run: RunModel
) -> tuple[int, dict[str, dict[str, float]], ClassScores]:
    """Score predictions, and write them to the recipe's file if it names one.

    Returns:
        The number of examples; the scores of the checkpoint and, with training data, of a baseline, by row; and those
        of the checkpoint by class.
    """
    if recipe.predictions and task.name == "masked-lm":
        raise ValueError(
            "--predictions is not for masked-lm, which scores the whole vocabulary at each mask: leave it out"
        )
    examples = _read_examples(recipe, task, recipe.data)
    check_kind(task, examples)
    check_labels(task, examples)
    report_doubts("data", examples, _doubted_pairs(recipe.checkpoint, examples))
    report_inputs("examples", recipe.checkpoint, task, encode_examples(task, examples))
    predictions = predict_with_progress(task, examples, run)
    if recipe.predictions:
        values = (task.to_dict(*pair) for pair in zip(examples, predictions, strict=True))
        lines = "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
        atomic_write(recipe.predictions, lines.encode(errors="backslashreplace"))  # as JSON escapes it
    rows = {recorded_name(recipe.checkpoint): task.score(examples, predictions)}
    if recipe.train:
        name, scores = best_baseline(task.name, _read_examples(recipe, task, recipe.train), examples, task.tokenizer)
        rows[name] = scores
    return len(examples), rows, task.class_scores(examples, predictions)


def _doubted_pairs(checkpoint: Path, examples: Examples) -> list[str]:
    """Return a line if the checkpoint was trained on pairs of texts, but not all of these are, or the reverse."""
    card, flags = read_task_card(checkpoint), pair_flags(examples)
    learned = card.provenance.get("text_pairs") if card else None
    if not flags or learned is None or all(flags) == learned:
        return []
    pairs = f"{sum(flags):,} of {len(flags):,} examples are pairs of texts"
    return [f"{pairs}, but the checkpoint was trained on {'pairs' if learned else 'single ones'}"]


def _read_examples(recipe: EvaluateRecipe, task: AnyTask, paths: Sequence[Path]) -> Examples:
    max_passage_tokens = min(MAX_PASSAGE_TOKENS, task.tokenizer.single.capacity(task.settings.max_seq_length))
    return read_examples(
        task.name, paths, columns=recipe.columns, tokenizer=task.tokenizer, max_passage_tokens=max_passage_tokens
    )


def evaluate_vectors(recipe: EvaluateRecipe, task: AnyTask, run: RunModel) -> tuple[int, dict[str, dict[str, float]]]:
    """Score the similarities of pairs of texts against their labels.

    Returns:
        The number of pairs; the scores of the checkpoint and of the baseline "word overlap", by row.
    """
    if recipe.train or recipe.predictions:
        raise ValueError("--train and --predictions are not for embeddings: nothing is fitted, and vectors are large")
    pairs = read_similarities(recipe.data, columns=recipe.columns, tokenizer=task.tokenizer)
    report_doubts("data", pairs)
    found = evaluate_pairs(task, pairs)
    name = "texts" if found.task is task else "pairs"
    report_inputs(name, recipe.checkpoint, found.task, encode_examples(found.task, found.examples))
    scores = found.score(predict_with_progress(found.task, found.examples, run))
    return len(pairs), {recorded_name(recipe.checkpoint): scores, "word overlap": word_overlap(pairs, task.tokenizer)}


def recipe_from_arguments() -> EvaluateRecipe:
    """Parse the recipe; by default, columns are those of the checkpoint's data."""
    read = partial(parse, EvaluateRecipe, "training.evaluate", __doc__)
    recipe = read()
    checkpoint = resolve_checkpoint(recipe.checkpoint)
    card = read_task_card(checkpoint)
    known = dev_columns(card.provenance.get("recipe", {}) if card else {})
    recipe = read(default=replace(recipe, columns=existing_columns(recipe.data, known)))
    return replace(recipe, checkpoint=checkpoint)


@command
def main() -> None:
    """Command line."""
    recipe = recipe_from_arguments()
    task, run = load_for_evaluation(recipe.checkpoint)
    classes: ClassScores = {}
    if compares_pairs(task):
        num_examples, rows = evaluate_vectors(recipe, task, run)
    else:
        num_examples, rows, classes = evaluate_predictions(recipe, task, run)
    print(f"{num_examples:,} examples")
    print(format_scores(rows) + format_class_scores(classes))


if __name__ == "__main__":
    main()
