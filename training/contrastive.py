"""Train sentence embeddings, so that texts with the same meaning have similar vectors: SimCSE (Gao et al. 2021).

    python -m training.contrastive unsupervised --checkpoint runs/mini/checkpoint --train texts.txt --run-dir runs/a
    python -m training.contrastive supervised --checkpoint runs/a/checkpoint --train pairs.tsv --run-dir runs/b \\
        --dev dev.tsv

Unsupervised, the positive of a text is the text itself with other dropout; supervised, it is the text's pair. Negatives
are the other texts of the global batch, and the column `negative` if there is one. The result is a checkpoint of the
task `embedding`, which `python -m export` turns into a model to serve. The same command resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import tyro

from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from tasks.regression import RegressionExample
from tasks.schema import Bounds
from tasks.tokenizer import Tokenizer
from training.bounds import COUNT, EPOCHS, LEARNING_RATE, NOT_NEGATIVE, TOKENS
from training.checkpoint import load_tokenizer, read_shape
from training.command import command, parse
from training.data.columns import Columns, existing_columns
from training.data.examples import Examples, encode_examples
from training.data.finetuning import FinetuningData
from training.data.input_warnings import report_inputs
from training.data.labelled import read_similarities
from training.data.table_examples import read_positives, read_texts
from training.evaluate import format_scores, torch_run
from training.hub import resolve_on_all
from training.loop.distributed import World, world
from training.loop.recipe import RecipeRecord
from training.loop.result import write_result
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Phase, Progress, Stage
from training.model.heads import BertModel
from training.objectives.base import LabelledFeatures
from training.objectives.contrastive import ContrastiveObjective
from training.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine
from training.sentence_transformers import checkpoint_directory, folder_digest, folder_settings, load_embedder
from training.similarity import mean_of_words, similarity_scores, texts_of, vector_scores, word_overlap
from training.task_card import TaskCard, read_task_card
from training.text.sentences import split_sentences

COMPARED_POOLINGS: tuple[Pooling, ...] = ("cls", "mean")
"""Poolings of the checkpoint that are scored before training."""
Views = tuple[str, ...]
"""A text, its positive, and its negative if it has one."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveRecipe(LoopSettings):
    """Train sentence embeddings on positives and in-batch negatives."""

    stage: ClassVar[Stage] = "contrastive training"

    mode: Annotated[Literal["unsupervised", "supervised"], tyro.conf.Positional, tyro.conf.arg(metavar="MODE")]
    """unsupervised: the positive of a text is the text itself with other dropout; supervised: its pair."""
    checkpoint: Path
    """Checkpoint to start from: a directory, ours or of a family in docs/reference/encoders.md, or a repository of the
    Hugging Face hub, as org/name or org/name@revision."""
    train: tuple[Path, ...]
    """Unsupervised: plain text, one text a line, or tables with a column `text`. Supervised: tables with `text`,
    `text_pair` and, optionally, `negative`. Tables: .tsv, .csv, .jsonl, .parquet, hf:ID,config=NAME,split=NAME."""
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
    min_label: float | None = None
    """Supervised: least `label` of a pair to train on; None for all pairs."""
    split_sentences: bool = False
    """Unsupervised: split each text into sentences, in any script (Thai and Lao: at spaces)."""
    pooling: Pooling | tuple[Pooling, ...] | None = None
    """Vector of a text. cls: the last hidden state of [CLS]; lasttoken: of the last token; mean, max, weightedmean (by
    position), mean_sqrt_len_tokens (sum / square root of the number of tokens): over all tokens. Several: one after the
    other. None for that of the checkpoint, cls if it states none. Layers after pooling stay, and are trained."""
    normalize: bool = True
    """Scale vectors to length 1. Training is the same, as it compares cosines."""
    head: Literal["auto", "on", "off"] = "auto"
    """Train [CLS] through BERT's pooler, a tanh layer that the trained model leaves out. auto: on if unsupervised, with
    pooling cls and no layers after it."""
    temperature: Annotated[float, Bounds(above=0)] = 0.05
    """Divisor of cosines before the softmax."""
    global_batch_size: Annotated[int, COUNT] = 64
    """Texts in a step, each with its positive, over all processes; the other texts are negatives."""
    micro_batch_size: Annotated[int, COUNT] = field(init=False, default=1)
    """Not a flag: a process runs its part of the batch as one micro-batch, as it compares each text with all others."""
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
        object.__setattr__(self, "micro_batch_size", self.global_batch_size)
        if self.global_batch_size < 2:
            raise ValueError("global_batch_size must be at least 2: the other texts of a batch are the negatives")
        if isinstance(self.pooling, tuple) and len(self.pooling) == 1:
            object.__setattr__(self, "pooling", self.pooling[0])
        if self.head == "on" and self.pooling not in (None, "cls"):
            raise ValueError("--head on needs --pooling cls: BERT's pooler is a layer over [CLS]")
        if self.mode == "unsupervised" and self.min_label is not None:
            raise ValueError("--min-label chooses among pairs; unsupervised training has none")
        if self.mode == "supervised" and self.split_sentences:
            raise ValueError("--split-sentences is for single texts; supervised training is on pairs")

    def with_head(self, settings: EmbeddingSettings) -> bool:
        """Return whether [CLS] goes through the pooler in training.

        Raises:
            ValueError: for `--head on`, if the vector is not that of [CLS].
        """
        is_cls = settings.pooling == "cls" and not settings.layers
        if self.head == "on" and not is_cls:
            raise ValueError(
                f"--head on needs vectors of [CLS] alone; `{self.checkpoint}` has {', '.join(settings.poolings)} and "
                f"layers: {', '.join(settings.layers) or 'none'}; give --head off"
            )
        return self.head == "on" or (self.head == "auto" and is_cls and self.mode == "unsupervised")


def train_embedding(recipe: ContrastiveRecipe, world: World) -> Path:
    """Train, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if data or checkpoint cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        return _train_embedding(recipe, run)


def _train_embedding(recipe: ContrastiveRecipe, run: RunDirectory) -> Path:
    data = _read_data(recipe)
    recipe = replace(recipe, pooling=data.task.settings.pooling)
    digests = input_digests(checkpoint_directory(recipe.checkpoint), recipe.train, recipe.dev)
    digests |= {"checkpoint_sha256": folder_digest(recipe.checkpoint)}
    origin = provenance(recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, digests)
    if not run.begin(RecipeRecord(recipe, digests, paths=PATH_FIELDS)):
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = _create_model(recipe, data.task.settings)
    baselines: dict[str, dict[str, float]] = {}
    if run.world.is_main:
        baselines = scores_before(data.task, data.dev, model, run.world) if data.dev else {}
        origin["cuts"] = _report_data(recipe, data)
    batches = _batches(recipe, data, model, run.world)
    progress = _train(recipe, run, data, model, batches)
    if run.world.is_main:
        origin |= training_extent(progress, batches.num_batches(0)) | training_machine(run.world)
        _write_result(recipe, run, data, model, baselines, origin)
    run.world.barrier()
    return run.checkpoint_path


# Data


@dataclass(frozen=True, kw_only=True)
class _Data:
    """Texts of a run, and the task that encodes them."""

    task: Embedding
    views: Examples
    """Views of each training text."""
    encoded: list[LabelledFeatures]
    """Features of the views."""
    dev: Sequence[RegressionExample]
    """Pairs with a similarity; empty without dev data."""


def _read_data(recipe: ContrastiveRecipe) -> _Data:
    tokenizer = load_tokenizer(checkpoint_directory(recipe.checkpoint))
    check_dropout(recipe)
    task = Embedding(tokenizer, embedding_settings(recipe, tokenizer))
    recipe.with_head(task.settings)  # raises before the data are read
    views = read_views(recipe)
    encoded = encode_views(views, task, recipe)
    dev = read_similarities(recipe.dev, columns=recipe.dev_columns, tokenizer=tokenizer) if recipe.dev else []
    return _Data(task=task, views=views, encoded=encoded, dev=dev)


def check_dropout(recipe: ContrastiveRecipe) -> None:
    """Check that unsupervised training has dropout; without it, both views of a text are equal.

    Raises:
        ValueError: if it has none.
    """
    shape = read_shape(checkpoint_directory(recipe.checkpoint))
    default = max(shape.hidden_dropout_prob, shape.attention_probs_dropout_prob)
    if recipe.mode == "unsupervised" and not (default if recipe.dropout is None else recipe.dropout):
        problem = "has no dropout" if recipe.dropout is None else "would be trained without dropout"
        raise ValueError(
            f"checkpoint `{recipe.checkpoint}` {problem}, so that both views of a text were equal; give --dropout 0.1"
        )


def embedding_settings(recipe: ContrastiveRecipe, tokenizer: Tokenizer) -> EmbeddingSettings:
    """Return the settings of the trained model: those of the checkpoint, with the pooling and length of the recipe.

    Raises:
        ValueError: if max_seq_length or train_seq_length exceeds the checkpoint's positions, or another pooling than
            the checkpoint's has another size than its first layer takes.
    """
    network = checkpoint_directory(recipe.checkpoint)
    max_positions, card = read_shape(network).num_positions, read_task_card(network)
    own = card.settings if card else None
    stated = vars(own) if isinstance(own, EmbeddingSettings) else folder_settings(recipe.checkpoint, tokenizer)
    known = {"max_seq_length": own.max_seq_length if own else max_positions, **stated}
    changes: dict[str, Any] = {"max_seq_length": recipe.max_seq_length, "pooling": recipe.pooling}
    given = {name: value for name, value in changes.items() if value is not None}
    settings = EmbeddingSettings(**{**known, **given, "normalize": recipe.normalize})
    for name, value in (("max_seq_length", settings.max_seq_length), ("train_seq_length", recipe.train_seq_length)):
        if value > max_positions:
            raise ValueError(f"{name} `{value}` is above the checkpoint's {max_positions} positions")
    return settings


def read_views(recipe: ContrastiveRecipe) -> Examples:
    """Read the views of each training text.

    Raises:
        ValueError: if the files have no texts, or only some texts have a negative.
    """
    views = Examples(item for path in recipe.train for item in _read_views(path, recipe))
    names = ", ".join(f"`{path}`" for path in recipe.train)
    if not views:
        hint = f" with a `{recipe.columns.label}` of {recipe.min_label} or more" * (recipe.min_label is not None)
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
    task = task.with_settings(max_seq_length=recipe.train_seq_length)
    texts = _different_texts(views)
    features = {text: windows[0] for text, windows in zip(texts, encode_examples(task, texts), strict=True)}
    numbers: dict[bytes, int] = {}
    number_of = {text: numbers.setdefault(item.input_ids.tobytes(), len(numbers)) for text, item in features.items()}
    if len(numbers) < 2:
        raise ValueError(f"all texts of `{recipe.train[0]}` are the same; there are no negatives to learn from")
    return [
        LabelledFeatures(tuple(features[text] for text in item), tuple(number_of[text] for text in item))
        for item in views
    ]


def _different_texts(views: Examples) -> Examples:
    """Return each text once, with its first location."""
    locations: dict[str, str] = {}
    for location, item in views.located():
        for text in item:
            locations.setdefault(text, location)
    return Examples((location, text) for text, location in locations.items())


def _report_data(recipe: ContrastiveRecipe, data: _Data) -> dict[str, Any]:
    """Describe the data, with warnings and notes.

    Returns:
        Records of truncated texts, for the task card.
    """
    print(f"{len(data.encoded):,} texts with their positives; {_describe(data.task.settings)}", flush=True)
    report = partial(report_inputs, checkpoint=recipe.checkpoint, task=data.task)
    limit = f"--train-seq-length {recipe.train_seq_length}"
    name = "training texts"
    cuts = {name: report(name, examples=(item.features for item in data.encoded), limit=limit)}
    if data.dev:
        cuts["dev texts"] = report("dev texts", examples=data.task.encode(texts_of(data.dev)))
    _note_overlap(data)
    return cuts


def _describe(settings: EmbeddingSettings) -> str:
    """Describe the vectors and the prompt of the texts."""
    prompt = f", with the prompt `{settings.default_prompt_name}`" * bool(settings.default_prompt_name)
    return f"vectors: {', '.join([*settings.poolings, *settings.layers])}{prompt}"


def _note_overlap(data: _Data) -> None:
    """Print a note if dev pairs are in the training data."""
    trained = {frozenset(item[:2]) for item in data.views}
    if count := sum(frozenset((pair.text, pair.text_pair)) in trained for pair in data.dev):
        print(f"note: {count:,} of {len(data.dev):,} dev pairs are in the training data, too", flush=True)


# Training, scores, result


def _create_model(recipe: ContrastiveRecipe, settings: EmbeddingSettings) -> BertModel:
    model = load_embedder(recipe.checkpoint, settings, new_head=True, dropout=recipe.dropout)
    model.bert.pooler.requires_grad_(recipe.with_head(settings))
    return model


def _batches(recipe: ContrastiveRecipe, data: _Data, model: BertModel, world: World) -> FinetuningData:
    settings = data.task.settings
    with_head = recipe.with_head(settings)
    objective = ContrastiveObjective(
        settings, model.dense, with_head=with_head, temperature=recipe.temperature, world=world
    )
    pad_id = data.task.tokenizer.pad_id
    return FinetuningData(
        data.encoded, objective, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=pad_id
    )


def _train(
    recipe: ContrastiveRecipe, run: RunDirectory, data: _Data, model: BertModel, batches: FinetuningData
) -> Progress:
    return train(
        model,
        [Phase(data=batches)],
        batches.objective.losses,
        num_steps=max(1, round(recipe.num_epochs * batches.num_batches(0))),
        settings=recipe,
        run=run,
        evaluation=_evaluation(recipe, data, model, run.world) if data.dev else None,
        label="contrastive",
    )


def _evaluation(recipe: ContrastiveRecipe, data: _Data, model: BertModel, world: World) -> Evaluation:
    """Return the evaluation for the curve: correlations on all dev pairs."""

    def correlations() -> dict[str, float]:
        scores = similarity_scores(data.task, data.dev, torch_run(model, data.task, world.device))
        return {name: scores[name] for name in ("spearman", "pearson")}

    return Evaluation(scores=correlations, every=recipe.eval_every)


def scores_before(
    task: Embedding, dev: Sequence[RegressionExample], model: BertModel, world: World
) -> dict[str, dict[str, float]]:
    """Return scores by row: of the checkpoint before training, and of baselines without training.

    The checkpoint is scored with cls and mean of its hidden states, and as it is if that is something else.
    """
    tasks = {f"before, {name}": task.with_settings(pooling=name, layers=()) for name in COMPARED_POOLINGS}
    if task.settings.layers or task.settings.pooling not in COMPARED_POOLINGS:
        tasks = {"before": task, **tasks}
    rows = {row: similarity_scores(other, dev, torch_run(model, other, world.device)) for row, other in tasks.items()}
    words = mean_of_words(model.bert.embeddings.word.weight.detach().cpu().numpy(), task.tokenizer)
    return rows | {
        "mean of word embeddings": vector_scores(dev, words),
        "word overlap": word_overlap(dev, task.tokenizer),
    }


def _write_result(
    recipe: ContrastiveRecipe,
    run: RunDirectory,
    data: _Data,
    model: BertModel,
    baselines: dict[str, dict[str, float]],
    origin: dict[str, Any],
) -> None:
    """Score the dev pairs, write the checkpoint, and print the scores.

    Args:
        baselines: scores by row from `scores_before`.
        origin: provenance of the checkpoint.
    """
    task, rows = data.task, baselines
    scores: dict[str, Any] = {}
    if data.dev:
        rows = {"dev": similarity_scores(task, data.dev, torch_run(model, task, run.world.device)), **baselines}
        scores = {**rows, "num_dev_examples": len(data.dev)}
    card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance=origin)
    write_result(run, model, tokenizer_from=checkpoint_directory(recipe.checkpoint), card=card)
    if data.dev:
        print(format_scores(rows))


def recipe_from_arguments() -> ContrastiveRecipe:
    """Parse the recipe; dev data have the columns of the training data unless flags name others."""
    read = partial(parse, ContrastiveRecipe, "training.contrastive", __doc__)
    recipe = read()
    if not recipe.dev:
        return recipe
    return read(default=replace(recipe, dev_columns=existing_columns(recipe.dev, recipe.columns)))


@command
def main() -> None:
    """Command line."""
    recipe = recipe_from_arguments()
    with world() as peers:
        recipe = replace(recipe, checkpoint=resolve_on_all(recipe.checkpoint, peers))
        checkpoint = train_embedding(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
