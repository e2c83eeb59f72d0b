"""Runs that train sentence embeddings: common fields of their recipes, texts, dev pairs, scores and result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from tasks.features import Features
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.evaluation import torch_run
from training.checkpoint.reader import read_shape
from training.checkpoint.sentence_transformers import checkpoint_directory, folder_digest
from training.checkpoint.task_card import TaskCard
from training.checkpoint.task_inference import read_checkpoint_task
from training.command_line.bounds import EPOCHS, LEARNING_RATE, NOT_NEGATIVE, TOKENS
from training.command_line.command import parse
from training.data.columns import Columns, existing_columns
from training.data.examples import Examples, encode_examples
from training.data.input_warnings import report_inputs
from training.data.plausibility import report_doubts
from training.finetuning.network import train_on
from training.loop.distributed import World
from training.loop.run_directory import RunDirectory
from training.loop.types import LoopSettings
from training.model.heads import BertModel
from training.objectives.base import LabelledFeatures, LabelledObjective
from training.objectives.labelled import read_similarities
from training.objectives.similarity import mean_of_words, similarity_scores, texts_of, vector_scores, word_overlap
from training.reports.result import input_digests, write_result
from training.reports.tables import format_scores

COMPARED_POOLINGS: tuple[Pooling, ...] = ("cls", "mean")
"""Poolings of the checkpoint that are scored before training."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingRecipe(LoopSettings):
    """Train sentence embeddings."""

    checkpoint: Path
    """Checkpoint to start from, of a family in docs/reference/encoders.md: a directory, or a repository of the Hugging
    Face hub, as org/name or org/name@revision."""
    dev: tuple[Path, ...] = ()
    """Held-out tables with columns `text`, `text_pair` and `label`, the similarity of both texts on any scale."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    compile: Literal["auto", "on", "off"] = "off"
    """torch.compile; auto: on for GPUs. It compiles each sequence length separately, so it pays only on long runs."""
    columns: Columns = field(default_factory=Columns)
    """Columns of the training data."""
    dev_columns: Columns = field(default_factory=Columns)
    """Columns of the dev data. By default, those of the training data that the dev data have."""
    pooling: Pooling | tuple[Pooling, ...] | None = None
    """Vector of a text: cls (the last hidden state of [CLS]), lasttoken (of the last token), mean, max, weightedmean
    (by position) or mean_sqrt_len_tokens (sum / square root of the number of tokens); several make a longer vector.
    None for that of the checkpoint, cls if it states none. Layers after pooling stay, and are trained."""
    normalize: bool = True
    """Scale vectors to length 1. Training is the same, as it compares cosines."""
    micro_batch_size: Annotated[int, NOT_NEGATIVE] = 0
    """Examples that a process runs through the network at a time; 0 for its whole part of the batch. Lower it if memory
    is short: the gradients stay the same, in a third more time (GradCache)."""
    num_epochs: Annotated[float, EPOCHS] = 1.0
    """Passes through the training data."""
    learning_rate: Annotated[float, LEARNING_RATE] = 3e-5
    max_seq_length: Annotated[int, TOKENS] | None = None
    """Longest text of the trained model in tokens; None for that of the checkpoint."""
    train_seq_length: Annotated[int, TOKENS] = 32
    """Longest training text in tokens; longer texts are cut."""
    eval_every: Annotated[int, NOT_NEGATIVE] = 100
    """Steps between evaluations on dev; 0 for one at the end."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.pooling, tuple) and len(self.pooling) == 1:
            object.__setattr__(self, "pooling", self.pooling[0])


# Texts and dev pairs


@dataclass(frozen=True, kw_only=True)
class EmbeddingData:
    """Texts of a run, and the task that encodes them."""

    task: Embedding
    texts: Examples
    """Training texts; in contrastive training, the views of each."""
    items: Sequence[LabelledFeatures]
    """Features of each of them."""
    dev: Examples
    """Pairs with a similarity; empty without dev data."""
    notes: Sequence[str] = ()
    """Lines about the training data, for the user."""


def embedding_digests(recipe: EmbeddingRecipe, train: Sequence[Path]) -> dict[str, Any]:
    """Return SHA-256 digests of data, weights (those of Dense modules included) and tokenizer, for recipe.json."""
    digests = input_digests(checkpoint_directory(recipe.checkpoint), train, recipe.dev)
    return digests | {"checkpoint_sha256": folder_digest(recipe.checkpoint)}


def embedding_task(recipe: EmbeddingRecipe) -> Embedding:
    """Return the task of the trained model: that of the checkpoint, with the pooling and length of the recipe.

    Raises:
        ValueError: if max_seq_length or train_seq_length exceeds the checkpoint's positions.
    """
    changes = {"max_seq_length": recipe.max_seq_length, "pooling": recipe.pooling, "normalize": recipe.normalize}
    given = {name: value for name, value in changes.items() if value is not None}
    task = read_checkpoint_task(recipe.checkpoint, task=Embedding.name, settings=given).task
    max_positions = read_shape(checkpoint_directory(recipe.checkpoint)).num_positions
    if (length := recipe.train_seq_length) > max_positions:
        raise ValueError(f"train_seq_length `{length}` is above the checkpoint's {max_positions} positions")
    assert isinstance(task, Embedding)
    return task


def encode_texts(task: Embedding, texts: Examples, max_seq_length: int) -> dict[str, Features]:
    """Return the features of each different text, cut to `max_seq_length` tokens.

    Raises:
        ValueError: naming the location of a text without tokens.
    """
    task = task.with_settings(max_seq_length=max_seq_length)
    return {text: windows[0] for text, windows in zip(texts, encode_examples(task, texts), strict=True)}


def different_texts(located: Iterable[tuple[str, str]]) -> Examples:
    """Return each text once, with its first location."""
    locations: dict[str, str] = {}
    for location, text in located:
        locations.setdefault(text, location)
    return Examples((location, text) for text, location in locations.items())


def read_dev_pairs(recipe: EmbeddingRecipe, tokenizer: Tokenizer) -> Examples:
    """Read the dev pairs of a recipe; empty if it names none."""
    if not recipe.dev:
        return Examples()
    return read_similarities(recipe.dev, columns=recipe.dev_columns, tokenizer=tokenizer)


def report_texts(recipe: EmbeddingRecipe, data: EmbeddingData) -> dict[str, Any]:
    """Warn of unknown words and truncated texts; return records of truncation, for the task card."""
    report = partial(report_inputs, checkpoint=recipe.checkpoint, task=data.task)
    name, limit = "training texts", f"--train-seq-length {recipe.train_seq_length}"
    cuts = {name: report(name, examples=(item.features for item in data.items), limit=limit)}
    report_doubts("dev data", data.dev)
    if data.dev:
        cuts["dev texts"] = report("dev texts", examples=data.task.encode(texts_of(data.dev)))
    return cuts


def describe_vectors(settings: EmbeddingSettings) -> str:
    """Describe the vectors and the prompt of the texts."""
    prompt = f", with the prompt `{settings.default_prompt_name}`" * bool(settings.default_prompt_name)
    return f"vectors: {', '.join([*settings.poolings, *settings.layers])}{prompt}"


# Training, scores and result


def scores_before(data: EmbeddingData, model: BertModel, world: World) -> dict[str, dict[str, float]]:
    """Return dev scores by row: of the checkpoint before training, and of baselines; empty without dev data.

    The checkpoint is scored with cls and mean of its hidden states, and as it is if that is something else.
    """
    task, dev = data.task, data.dev
    if not dev:
        return {}
    tasks = {f"before, {name}": task.with_settings(pooling=name, layers=()) for name in COMPARED_POOLINGS}
    if task.settings.layers or task.settings.pooling not in COMPARED_POOLINGS:
        tasks = {"before": task, **tasks}
    rows = {row: similarity_scores(other, dev, torch_run(model, other, world.device)) for row, other in tasks.items()}
    words = mean_of_words(model.bert.embeddings.word.weight.detach().cpu().numpy(), task.tokenizer)
    return rows | {
        "mean of word embeddings": vector_scores(dev, words),
        "word overlap": word_overlap(dev, task.tokenizer),
    }


def train_embedder(
    recipe: EmbeddingRecipe,
    run: RunDirectory,
    data: EmbeddingData,
    model: BertModel,
    objective: LabelledObjective,
    *,
    baselines: Mapping[str, Mapping[str, float]],
    origin: Mapping[str, Any],
    label: str,
) -> None:
    """Train a network, score it on all dev pairs, write the checkpoint, and print the scores.

    Args:
        baselines: scores by row, to compare with.
        label: name of the progress bar.
    """
    task, dev = data.task, data.dev

    def dev_scores() -> dict[str, float]:
        return similarity_scores(task, dev, torch_run(model, task, run.world.device))

    def correlations() -> dict[str, float]:
        scores = dev_scores()
        return {name: scores[name] for name in ("spearman", "pearson")}

    trained = train_on(
        data.items,
        objective,
        model,
        recipe,
        run,
        num_epochs=recipe.num_epochs,
        pad_id=task.tokenizer.pad_id,
        scores=correlations if dev else None,
        eval_every=recipe.eval_every,
        label=label,
    )
    if run.world.is_main:
        rows = {"dev": dev_scores(), **baselines} if dev else {}
        scores = {**rows, "num_dev_examples": len(dev)} if dev else {}
        card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance={**origin, **trained})
        write_result(run, model, tokenizer_from=checkpoint_directory(recipe.checkpoint), card=card)
        if dev:
            print(format_scores(rows))
    run.world.barrier()


RecipeT = TypeVar("RecipeT", bound=EmbeddingRecipe)


def parse_embedding_recipe(recipe_type: type[RecipeT], module: str, description: str | None) -> RecipeT:
    """Parse a recipe; dev data have the columns of the training data unless flags name others."""
    read = partial(parse, recipe_type, module, description)
    recipe = read()
    if not recipe.dev:
        return recipe
    return read(default=replace(recipe, dev_columns=existing_columns(recipe.dev, recipe.columns)))
