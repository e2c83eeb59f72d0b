"""Train sentence embeddings, so that texts with the same meaning have similar vectors: SimCSE (Gao et al. 2021).

    python -m training.contrastive unsupervised --checkpoint runs/mini/checkpoint --train texts.txt --run-dir runs/a
    python -m training.contrastive supervised --checkpoint runs/a/checkpoint --train pairs.tsv --run-dir runs/b \\
        --dev dev.tsv

Unsupervised, the positive of a text is the text itself with other dropout; supervised, it is the text's pair. Negatives
are the other texts of the global batch, and the column `negative` if there is one. The result is a checkpoint of the
task `embedding`, which `python -m export` turns into a model to serve. The same command resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
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
from training.data.examples import Examples
from training.data.table_examples import read_positives, read_texts
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
from training.objectives.contrastive import ContrastiveObjective
from training.reports.result import PATH_FIELDS, provenance
from training.text.sentences import split_sentences

Views = tuple[str, ...]
"""A text, its positive, and its negative if it has one."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveRecipe(EmbeddingRecipe):
    """Train sentence embeddings on positives and in-batch negatives."""

    stage: ClassVar[Stage] = "contrastive training"

    mode: Annotated[Literal["unsupervised", "supervised"], tyro.conf.Positional, tyro.conf.arg(metavar="MODE")]
    """unsupervised: the positive of a text is the text itself with other dropout; supervised: its pair."""
    train: tuple[Path, ...]
    """Unsupervised: plain text, one text a line, or tables with a column `text`. Supervised: tables with `text`,
    `text_pair` and, optionally, `negative`. Tables: .tsv, .csv, .jsonl, .parquet, hf:ID,config=NAME,split=NAME."""
    min_label: float | None = None
    """Supervised: least `label` of a pair to train on; None for all pairs."""
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
            refuse_unused(self, "min_label", "chooses among pairs of supervised training")
        else:
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
    views = read_views(recipe)
    items = encode_views(views, task, recipe)
    return EmbeddingData(task=task, texts=views, items=items, dev=read_dev_pairs(recipe, task.tokenizer))


def read_views(recipe: ContrastiveRecipe) -> Examples:
    """Read the views of each training text.

    Raises:
        ValueError: if the files have no texts, or only some texts have a negative.
    """
    views = Examples(item for path in recipe.train for item in _read_views(path, recipe))
    names = ", ".join(f"`{path}`" for path in recipe.train)
    if not views:
        hint = "" if recipe.min_label is None else f" with a `{recipe.columns.label}` of {recipe.min_label} or more"
        raise ValueError(f"no {'texts' if recipe.mode == 'unsupervised' else 'pairs'}{hint} in {names}")
    if len({len(item) for item in views}) > 1:
        raise ValueError(
            f"some texts of {names} have a `{recipe.columns.negative}`, others none; give it to all or none"
        )
    return views


def _read_views(path: Path, recipe: ContrastiveRecipe) -> Iterator[tuple[str, Views]]:
    """Yield location and views of each text."""
    if recipe.mode == "supervised":
        yield from read_positives(path, recipe.columns, recipe.min_label).located()
        return
    for location, text in read_texts(path, recipe.columns).located():
        for part in split_sentences(text) if recipe.split_sentences else [text]:
            yield location, (part, part)


def encode_views(views: Examples, task: Embedding, recipe: ContrastiveRecipe) -> list[LabelledFeatures]:
    """Encode the views of each text. Their labels are numbers of token sequences: views with equal tokens have one.

    Raises:
        ValueError: if all texts have the same tokens.
    """
    texts = different_texts((location, text) for location, item in views.located() for text in item)
    features = encode_texts(task, texts, recipe.train_seq_length)
    numbers: dict[bytes, int] = {}
    number_of = {text: numbers.setdefault(item.input_ids.tobytes(), len(numbers)) for text, item in features.items()}
    if len(numbers) < 2:
        raise ValueError(f"all texts of `{recipe.train[0]}` are the same; there are no negatives to learn from")
    return [
        LabelledFeatures(tuple(features[text] for text in item), tuple(number_of[text] for text in item))
        for item in views
    ]


def _report_data(recipe: ContrastiveRecipe, data: EmbeddingData) -> dict[str, Any]:
    """Describe the data, with warnings and notes; return records of truncated texts, for the task card."""
    print(f"{len(data.items):,} texts with their positives; {describe_vectors(data.task.settings)}", flush=True)
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
