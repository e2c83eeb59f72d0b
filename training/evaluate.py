"""Evaluate a checkpoint on a dev set, with the code that the server runs before and after the model.

    python -m training.evaluate runs/sst2/checkpoint --data dev.tsv --train train.tsv
    python -m training.evaluate runs/vectors/checkpoint --data stsb-dev.tsv

Embeddings are scored on pairs of texts: Spearman's correlation of their cosines with the similarities in `label`. For
sparse embeddings, dot products replace cosines; for token embeddings, MaxSim of the query `text` and the document
`text_pair`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from torch import nn

from tasks import AnyTask, create_task
from tasks.batching import RunModel, predict
from tasks.embedding import Embedding
from tasks.files import atomic_write
from tasks.metrics import is_loss
from training.checkpoint import load_model, load_tokenizer, read_config
from training.checkpoint_task import read_checkpoint_task
from training.command import command, parse
from training.data.cloze import MAX_PASSAGE_TOKENS
from training.data.columns import Columns, dev_columns, existing_columns
from training.data.examples import Examples, encode_examples
from training.data.input_warnings import report_inputs
from training.data.labelled import read_examples, read_similarities
from training.hub import recorded_name, resolve_checkpoint
from training.model.vectors import with_task_outputs
from training.objectives.base import find_unknown_label
from training.objectives.registry import OBJECTIVES, best_baseline
from training.progress_bar import ProgressBar
from training.sentence_transformers import MODULES_FILE, checkpoint_directory, load_embedder
from training.similarity import compares_pairs, evaluate_pairs, word_overlap
from training.task_card import read_task_card


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


def torch_run(model: nn.Module, task: AnyTask, device: torch.device | str = "cpu") -> RunModel:
    """Return a function from padded arrays to the outputs of a network, with the names of its ONNX graph."""
    network = with_task_outputs(model, task.settings)
    network.eval().to(device)

    @torch.inference_mode()
    def run(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        inputs: dict[str, Any] = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return {name: output.float().cpu().numpy() for name, output in network(**inputs).items()}

    return run


def load_for_evaluation(checkpoint: Path) -> tuple[AnyTask, RunModel]:
    """Load the task of a checkpoint and its network, ready to run.

    Raises:
        ValueError: if the checkpoint states no task, or its network does not fit the task.
    """
    task = _read_task(checkpoint)
    if task.network_task == Embedding.name:
        model = load_embedder(checkpoint, task.settings)
    else:
        model = load_model(checkpoint_directory(checkpoint), task.network_task)
    if task.settings.max_seq_length > (num_positions := model.config.num_positions):
        raise ValueError(
            f"`{checkpoint}` has {num_positions} positions, too few for the max_seq_length "
            f"`{task.settings.max_seq_length}` of its task.json"
        )
    return task, torch_run(model, task, "cuda" if torch.cuda.is_available() else "cpu")


def _read_task(checkpoint: Path) -> AnyTask:
    """Return the task of a checkpoint: that of its task card, or of its modules."""
    if card := read_task_card(checkpoint):
        return create_task(card.task, load_tokenizer(checkpoint), card.settings)
    if not (checkpoint / MODULES_FILE).is_file():
        read_config(checkpoint)  # raises if it is no checkpoint
        raise ValueError(f"checkpoint `{checkpoint}` has no task.json; fine-tune it first")
    return read_checkpoint_task(checkpoint).task


def check_labels(task: AnyTask, examples: Examples) -> None:
    """Check that the task has all labels of the data; if not, this is another data set or column.

    Raises:
        ValueError: naming the first unknown label and its location.
    """
    labels = getattr(task.settings, "labels", ())
    if labels and (unknown := find_unknown_label(OBJECTIVES[task.name], examples, labels)):
        location, label = unknown
        raise ValueError(f"{location}: label `{label}` is none of the checkpoint's: {', '.join(labels)}")


def check_kind(task: AnyTask, examples: Examples) -> None:
    """Check that the task can be scored on the data.

    Raises:
        ValueError: naming the first example that does not fit, and its location.
    """
    if task.name in OBJECTIVES and (problem := OBJECTIVES[task.name].mismatch(task.settings, examples)):
        raise ValueError(problem)


def predict_with_progress(task: AnyTask, examples: Sequence[Any], run: RunModel) -> list[Any]:
    """Predict as `tasks.batching.predict`, with a progress bar."""
    with ProgressBar("evaluate", unit="example", total=len(examples)) as bar:
        chunk_size = 32 if task.name == "masked-lm" else 256
        return predict(task, examples, run, chunk_size=chunk_size, progress=bar.update)


def format_scores(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Format scores as a table, in percent except for losses and errors.

    Args:
        rows: scores by row.
    """
    names = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    width = max(map(len, rows))
    widths = {name: max(14, len(name) + 2) for name in names}
    lines = [" " * width + "".join(f"{name:>{widths[name]}}" for name in names)]
    for row, scores in rows.items():
        cells = (f"{_cell(name, scores):>{widths[name]}}" for name in names)
        lines.append(f"{row:<{width}}" + "".join(cells))
    return "\n".join(lines)


def _cell(name: str, scores: Mapping[str, float]) -> str:
    if name not in scores:
        return "-"
    if name.endswith("error"):
        return f"{scores[name]:.4g}"
    return f"{scores[name]:.3f}" if is_loss(name) else f"{100 * scores[name]:.2f}"


def evaluate_predictions(
    recipe: EvaluateRecipe, task: AnyTask, run: RunModel
) -> tuple[int, dict[str, dict[str, float]]]:
    """Score predictions, and write them to the recipe's file if it names one.

    Returns:
        The number of examples; the scores of the checkpoint and, with training data, of a baseline, by row.
    """
    if recipe.predictions and task.name == "masked-lm":
        raise ValueError(
            "--predictions is not for masked-lm, which scores the whole vocabulary at each mask: leave it out"
        )
    examples = _read_examples(recipe, task, recipe.data)
    check_kind(task, examples)
    check_labels(task, examples)
    report_inputs("examples", recipe.checkpoint, task, encode_examples(task, examples))
    predictions = predict_with_progress(task, examples, run)
    if recipe.predictions:
        _write_predictions(recipe.predictions, task, examples, predictions)
    rows = {recorded_name(recipe.checkpoint): task.score(examples, predictions)}
    if recipe.train:
        name, scores = best_baseline(task.name, _read_examples(recipe, task, recipe.train), examples, task.tokenizer)
        rows[name] = scores
    return len(examples), rows


def _read_examples(recipe: EvaluateRecipe, task: AnyTask, paths: Sequence[Path]) -> Examples:
    max_passage_tokens = min(MAX_PASSAGE_TOKENS, task.tokenizer.single.capacity(task.settings.max_seq_length))
    return read_examples(
        task.name, paths, columns=recipe.columns, tokenizer=task.tokenizer, max_passage_tokens=max_passage_tokens
    )


def _write_predictions(path: Path, task: AnyTask, examples: Sequence[Any], predictions: Sequence[Any]) -> None:
    """Write a JSON object a line for each example."""
    lines = [json.dumps(task.to_dict(*pair), ensure_ascii=False) for pair in zip(examples, predictions, strict=True)]
    atomic_write(path, "".join(line + "\n" for line in lines).encode(errors="backslashreplace"))  # as JSON escapes it


def evaluate_vectors(recipe: EvaluateRecipe, task: AnyTask, run: RunModel) -> tuple[int, dict[str, dict[str, float]]]:
    """Score the similarities of pairs of texts against their labels.

    Returns:
        The number of pairs; the scores of the checkpoint and of the baseline "word overlap", by row.
    """
    if recipe.train or recipe.predictions:
        raise ValueError("--train and --predictions are not for embeddings: nothing is fitted, and vectors are large")
    pairs = read_similarities(recipe.data, columns=recipe.columns, tokenizer=task.tokenizer)
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
    if compares_pairs(task):
        num_examples, rows = evaluate_vectors(recipe, task, run)
    else:
        num_examples, rows = evaluate_predictions(recipe, task, run)
    print(f"{num_examples:,} examples")
    print(format_scores(rows))


if __name__ == "__main__":
    main()
