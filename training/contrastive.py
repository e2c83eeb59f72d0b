"""Train sentence embeddings, so that texts with the same meaning have similar vectors: SimCSE (Gao et al. 2021).

    python -m training.contrastive unsupervised --checkpoint runs/mini/checkpoint --train texts.txt --run-dir runs/a
    python -m training.contrastive supervised --checkpoint runs/a/checkpoint --train pairs.tsv --run-dir runs/b \\
        --dev dev.tsv

Unsupervised, the positive of a text is the text itself with other dropout; supervised, it is the text's pair. Negatives
are the other texts of the global batch, and the columns `negative`, `negative_2` and so on if there are any. Pairs with
scores are trained in their order (CoSENT). The result is a checkpoint of the task `embedding`, which `python -m export`
turns into a model to serve. The same command resumes.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import tyro

from tasks.embedding import Embedding, EmbeddingSettings
from tasks.schema import Bounds
from training.checkpoint.reader import read_shape
from training.checkpoint.sentence_transformers import checkpoint_directory, load_embedder
from training.command_line.bounds import refuse_unused
from training.command_line.command import command
from training.data.cells import NOT_DATA, table_rows, to_number
from training.data.examples import Examples
from training.data.pairs import (
    TrainingTexts,
    describe_labels,
    find_positives,
    negative_columns,
    plain_label,
    positive_pairs,
    read_pairs,
    scored_pairs,
    views_of,
)
from training.data.table_examples import read_texts
from training.data.tables import TABLES, kind_of
from training.finetuning.embedding_run import (
    EmbeddingData,
    EmbeddingRecipe,
    describe_vectors,
    different_texts,
    embedding_digests,
    embedding_task,
    encode_texts,
    parse_embedding_recipe,
    read_dev_pairs,
    report_texts,
    scores_before,
    train_embedder,
)
from training.loop.distributed import World, resolve_on_all, world
from training.loop.recipe import RecipeRecord
from training.loop.run_directory import RunDirectory
from training.loop.types import Stage
from training.objectives.base import LabelledFeatures
from training.objectives.contrastive import ContrastiveObjective, without_negatives
from training.objectives.finetuning import batch_order
from training.reports.result import PATH_FIELDS, provenance
from training.text.sentences import split_sentences

MAX_COMPARED = 2**24
"""Pairs of texts in batches that are compared before training, to find texts without negatives."""
MAX_WITHOUT_NEGATIVES = 0.01
"""Warn if a larger fraction of the texts has no negative in its batch."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveRecipe(EmbeddingRecipe):
    """Train sentence embeddings on positives and in-batch negatives."""

    stage: ClassVar[Stage] = "contrastive training"

    mode: Annotated[Literal["unsupervised", "supervised"], tyro.conf.Positional, tyro.conf.arg(metavar="MODE")]
    """unsupervised: the positive of a text is the text itself with other dropout; supervised: its pair."""
    train: tuple[Path, ...]
    """Unsupervised: plain text, one text a line, or tables with a column `text`. Supervised: tables with `text`,
    `text_pair` and, optionally, `negative` and `label`. Tables: .tsv, .csv, .jsonl, .parquet,
    hf:ID,config=NAME,split=NAME."""
    loss: Literal["auto", "infonce", "cosent"] = "auto"
    """Supervised. infonce: a pair is more similar than the text and other texts of the batch; without
    --positive-labels and --min-label it reads no labels. cosent: pairs with higher scores in `label` are more similar.
    auto: cosent for scores; infonce otherwise, on pairs with the label 1 or a word such as `entailment`."""
    positive_labels: tuple[str, ...] = ()
    """Supervised: labels of the pairs to train on, such as entailment; others are left out."""
    min_label: float | None = None
    """Supervised: least number in `label` of a pair to train on; others are left out."""
    split_sentences: bool = False
    """Unsupervised: split each text into sentences, in any script (Thai and Lao: at spaces)."""
    head: Literal["auto", "on", "off"] = "auto"
    """Train [CLS] through BERT's pooler, a tanh layer that the trained model leaves out. auto: on if unsupervised, with
    pooling cls and no layers after it."""
    temperature: Annotated[float, Bounds(above=0)] = 0.05
    """Divisor of cosines before the softmax."""
    global_batch_size: Annotated[int, Bounds(least=2)] = 64
    """Texts in a step, each with its positive, over all processes; the other texts are negatives."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "unsupervised":
            for name in ("loss", "positive_labels", "min_label"):
                refuse_unused(self, name, "is for pairs of supervised training")
        else:
            chosen = bool(self.positive_labels) + (self.min_label is not None) + (self.loss == "cosent")
            if chosen > 1:
                raise ValueError("--positive-labels, --min-label and --loss cosent conflict; give one of them")
            refuse_unused(self, "split_sentences", "is for single texts of unsupervised training")

    def with_head(self, settings: EmbeddingSettings) -> bool:
        """Return whether [CLS] goes through the pooler in training.

        Raises:
            ValueError: for `--head on`, if the vector is not that of [CLS].
        """
        is_cls = settings.pooling == "cls" and not settings.layers
        if self.head == "on" and not is_cls:
            raise ValueError(f"--head on needs vectors of [CLS] alone ({describe_vectors(settings)}); give --head off")
        return self.head == "on" or (self.head == "auto" and is_cls and self.mode == "unsupervised")


def train_embedding(recipe: ContrastiveRecipe, world: World) -> Path:
    """Train, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data or checkpoint cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        data = _read_data(recipe)
        settings = data.task.settings
        recipe = replace(recipe, pooling=settings.pooling)
        digests = embedding_digests(recipe, recipe.train)
        origin = provenance(recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, digests)
        if not run.begin(RecipeRecord(recipe, digests, paths=PATH_FIELDS)):
            return run.checkpoint_path
        torch.manual_seed(recipe.seed)
        model = load_embedder(recipe.checkpoint, settings, new_head=True, dropout=recipe.dropout)
        with_head = recipe.with_head(settings)
        model.bert.pooler.requires_grad_(with_head)
        baselines: dict[str, dict[str, float]] = {}
        if world.is_main:
            baselines = scores_before(data, model, world)
            origin["cuts"] = _report_data(recipe, data)
        objective = ContrastiveObjective(
            settings, model.dense, with_head=with_head, temperature=recipe.temperature, world=world
        )
        train_embedder(recipe, run, data, model, objective, baselines=baselines, origin=origin, label="contrastive")
        return run.checkpoint_path


# Data


def _read_data(recipe: ContrastiveRecipe) -> EmbeddingData:
    shape = read_shape(checkpoint_directory(recipe.checkpoint))
    default = max(shape.hidden_dropout_prob, shape.attention_probs_dropout_prob)
    if recipe.mode == "unsupervised" and not (default if recipe.dropout is None else recipe.dropout):
        problem = "has no dropout" if recipe.dropout is None else "would be trained without dropout"
        raise ValueError(
            f"checkpoint `{recipe.checkpoint}` {problem}, so that both views of a text were equal; give --dropout 0.1"
        )
    task = embedding_task(recipe)
    recipe.with_head(task.settings)  # raises before the data are read
    texts = read_training_texts(recipe)
    items = encode_views(texts, task, recipe)
    notes = [*texts.notes, *([] if texts.scores else _check_negatives(items, recipe))]
    dev = read_dev_pairs(recipe, task.tokenizer)
    return EmbeddingData(task=task, texts=texts.views, items=items, dev=dev, notes=notes)


def read_training_texts(recipe: ContrastiveRecipe) -> TrainingTexts:
    """Read the texts to train on.

    Raises:
        ValueError: if the files have no texts, or pairs whose labels or negatives cannot be used.
    """
    if recipe.mode == "supervised":
        return _read_pairs(recipe)
    parts_of = split_sentences if recipe.split_sentences else lambda text: [text]
    located = [item for path in recipe.train for item in read_texts(path, recipe.columns).located()]
    if not located:
        raise ValueError(f"no texts in {_files(recipe)}")
    tables = [path for path in recipe.train if kind_of(path) in TABLES]
    names = {name for path in tables for name in next(table_rows(path, recipe.columns), ("", {}))[1]}
    views = Examples((location, (part, part)) for location, text in located for part in parts_of(text))
    return TrainingTexts(views, notes=_unread_columns(names - {recipe.columns.text}))


def _read_pairs(recipe: ContrastiveRecipe) -> TrainingTexts:
    """Read pairs; choose positives by their labels, or take those as scores."""
    columns, label = recipe.columns, recipe.columns.label
    pairs, names = read_pairs(recipe.train, columns)
    unread = names.keys() - {columns.text, columns.text_pair}
    chooses = recipe.positive_labels or recipe.min_label is not None or recipe.loss == "cosent"
    has_labels = any(pair.label for pair in pairs)
    if not chooses and (recipe.loss == "infonce" or not has_labels):
        texts = TrainingTexts(views_of(pairs))
    else:
        if names[label] < len(pairs):
            raise ValueError(
                f"{names[label]:,} of {len(pairs):,} pairs of {_files(recipe)} have the column `{label}`; give it to "
                "all or none"
            )
        unread -= {label}
        positives = _positive_labels(recipe, Counter(pair.label for pair in pairs))
        texts = scored_pairs(pairs, label) if positives is None else positive_pairs(pairs, positives, label)
    if not texts.scores:
        unread -= {*negative_columns(names, columns)}
    read = [f"note: {note}" for note in pairs.notes]
    return replace(texts, notes=[*read, *texts.notes, *_unread_columns(unread)])


def _positive_labels(recipe: ContrastiveRecipe, labels: Mapping[str, int]) -> set[str] | None:
    """Return the labels of positives; None if labels are scores."""
    if recipe.min_label is not None:
        return {label for label in labels if to_number(label) >= recipe.min_label}
    if not recipe.positive_labels:
        return None if recipe.loss == "cosent" else find_positives(labels)
    positives = {plain_label(label) for label in recipe.positive_labels}
    if unknown := positives - labels.keys():
        raise ValueError(f"--positive-labels `{min(unknown)}` is no label of the pairs: {describe_labels(labels)}")
    return positives


def _files(recipe: ContrastiveRecipe) -> str:
    return ", ".join(f"`{path}`" for path in recipe.train)


def _unread_columns(names: Collection[str]) -> list[str]:
    """Return a line that names columns that training does not read; none if there are none."""
    unread = ", ".join(f"`{name}`" for name in sorted(set(names) - {*NOT_DATA}))
    return [f"note: training does not read {unread}"] if unread else []


def encode_views(texts: TrainingTexts, task: Embedding, recipe: ContrastiveRecipe) -> list[LabelledFeatures]:
    """Encode the views of each text. Labels are scores, or numbers of token sequences: equal ones have one number."""
    views = texts.views
    different = different_texts((location, text) for location, item in views.located() for text in item)
    features = encode_texts(task, different, recipe.train_seq_length)
    numbers: dict[bytes, int] = {}
    number_of = {text: numbers.setdefault(item.input_ids.tobytes(), len(numbers)) for text, item in features.items()}
    labels: list[tuple[float, ...]] = [(score,) for score in texts.scores]
    labels = labels or [tuple(number_of[text] for text in item) for item in views]
    return [
        LabelledFeatures(tuple(features[text] for text in item), label)
        for item, label in zip(views, labels, strict=True)
    ]


def _check_negatives(items: Sequence[LabelledFeatures], recipe: ContrastiveRecipe) -> list[str]:
    """Return warnings of texts without negatives in their batch, and of pairs and negatives that are the text.

    Raises:
        ValueError: if none has one, so that there is nothing to learn.
    """
    numbers = torch.tensor([item.labels for item in items])
    size, num_views = recipe.global_batch_size, numbers.shape[1]
    order = batch_order(items, size, recipe.seed, epoch=0)[: max(1, MAX_COMPARED // (size * size * num_views))]
    fraction = float(torch.cat([without_negatives(numbers[batch]) for batch in order]).float().mean())
    texts, positives = (len(numbers[:, view].unique()) for view in (0, 1))
    different = f"different texts: {texts:,} of {len(numbers):,}, different positives: {positives:,}"
    if fraction == 1:
        raise ValueError(f"no text of {_files(recipe)} has a negative in its batch, so the loss is 0; {different}")
    lines = []
    if fraction > MAX_WITHOUT_NEGATIVES:
        lines.append(f"{fraction:.0%} of the texts have no negative in their batch, so their loss is 0; {different}")
    if recipe.mode == "supervised" and (count := int((numbers[:, 0] == numbers[:, 1]).sum())):
        lines.append(f"{count:,} of {len(numbers):,} texts are their own pair")
    if count := int((numbers[:, 2:, None] == numbers[:, None, :2]).any((1, 2)).sum()):
        lines.append(f"{count:,} of {len(numbers):,} texts have a negative that is the text or its pair")
    return [f"warning: {line}" for line in lines]


def _report_data(recipe: ContrastiveRecipe, data: EmbeddingData) -> dict[str, Any]:
    """Describe the data, with warnings and notes; return records of truncated texts, for the task card."""
    num_negatives = len(data.texts[0]) - 2
    negatives = f" and {num_negatives} negatives each" if num_negatives else ""
    print(f"{len(data.items):,} texts with their pairs{negatives}; {describe_vectors(data.task.settings)}", flush=True)
    for note in data.notes:
        print(note, file=sys.stderr if note.startswith("warning") else sys.stdout, flush=True)
    cuts = report_texts(recipe, data)
    trained = {frozenset(item[:2]) for item in data.texts}
    if count := sum(frozenset((pair.text, pair.text_pair)) in trained for pair in data.dev):
        print(f"note: {count:,} of {len(data.dev):,} dev pairs are in the training data, too", flush=True)
    return cuts


@command
def main() -> None:
    """Command line."""
    recipe = parse_embedding_recipe(ContrastiveRecipe, "training.contrastive", __doc__)
    with world() as peers:
        recipe = replace(recipe, checkpoint=resolve_on_all(recipe.checkpoint, peers))
        checkpoint = train_embedding(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
