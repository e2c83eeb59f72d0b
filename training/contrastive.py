"""Train the vectors of texts, so that texts that mean the same are close: SimCSE (Gao et al. 2021).

    python -m training.contrastive unsupervised --checkpoint runs/mini/checkpoint --train texts.txt --run-dir runs/a
    python -m training.contrastive supervised --checkpoint runs/a/checkpoint --train pairs.tsv --run-dir runs/b \\
        --dev dev.tsv

Unsupervised, the positive of a text is the text itself, seen through other dropout; supervised, it is the text's pair.
The other texts of the global batch are negatives, and so is the column `negative` where there is one. The result is a
checkpoint of the task `embedding`, which `python -m export` makes a model of that is served. The same command again
resumes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import torch
import tyro

from tasks.embedding import Embedding, EmbeddingSettings, Pooling
from tasks.regression import RegressionExample
from tasks.schema import Bounds
from training.bounds import COUNT, EPOCHS, LEARNING_RATE, NOT_NEGATIVE, TOKENS
from training.checkpoint import load_model, load_tokenizer, read_shape
from training.command import command, parse
from training.data.columns import Columns, existing_columns
from training.data.examples import Examples, encode_examples
from training.data.finetuning import FinetuningData
from training.data.input_warnings import report_inputs
from training.data.labelled import read_similarities
from training.data.table_examples import read_positives, read_texts
from training.evaluate import format_scores, torch_run
from training.loop.distributed import World, world
from training.loop.recipe import RecipeRecord
from training.loop.result import write_result
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Phase, Stage
from training.model.heads import BertModel
from training.objectives.base import LabelledFeatures
from training.objectives.contrastive import ContrastiveObjective
from training.provenance import PATH_FIELDS, input_digests, provenance, training_extent, training_machine
from training.similarity import mean_of_words, similarity_scores, texts_of, vector_scores, word_overlap
from training.task_card import TaskCard, read_task_card
from training.text.sentences import split_sentences

Views = tuple[str, ...]
"""A text, its positive, and its negative where there is one."""


@dataclass(frozen=True, kw_only=True)
class ContrastiveRecipe(LoopSettings):
    """Train the vectors of texts on positives and in-batch negatives."""

    stage: ClassVar[Stage] = "contrastive training"

    mode: Annotated[Literal["unsupervised", "supervised"], tyro.conf.Positional, tyro.conf.arg(metavar="MODE")]
    """unsupervised: a text's positive is the text itself, through other dropout; supervised: its pair."""
    checkpoint: Path
    """Checkpoint to start from: ours, or any Hugging Face BERT directory."""
    train: tuple[Path, ...]
    """Unsupervised: plain text, a text a line, or tables with a column `text`. Supervised: tables with `text`,
    `text_pair` and perhaps `negative`. Tables: .tsv, .csv, .jsonl, .parquet, hf:ID,config=NAME,split=NAME."""
    dev: tuple[Path, ...] = ()
    """Held-out tables of `text`, `text_pair` and, in `label`, a number that says how alike they are."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    compile: Literal["auto", "on", "off"] = "off"
    """torch.compile; auto is on for GPUs. Each length of batch is compiled by itself, which pays on long runs only."""
    columns: Columns = field(default_factory=Columns)
    """Columns of the training data."""
    dev_columns: Columns = field(default_factory=Columns)
    """Columns of the dev data. Those not given are as in the training data, if the dev data have them."""
    min_label: float | None = None
    """Supervised: only pairs whose `label` is at least this are positives; None for all pairs."""
    split_sentences: bool = False
    """Unsupervised: split each text into sentences, in any script (Thai and Lao: at spaces)."""
    pooling: Pooling = "cls"
    """The vector of a text: the last hidden state of [CLS], or its mean over tokens."""
    normalize: bool = True
    """Give vectors of length 1 (training compares directions only)."""
    head: Literal["auto", "on", "off"] = "auto"
    """Train [CLS] through BERT's pooler, a tanh layer; the vectors are those below it. auto: if unsupervised."""
    temperature: Annotated[float, Bounds(above=0)] = 0.05
    """Cosines are divided by it before the softmax."""
    global_batch_size: Annotated[int, COUNT] = 64
    """Texts in a step, each with its positive, over all processes; the other texts are negatives."""
    micro_batch_size: Annotated[int, COUNT] = field(init=False, default=1)
    """Not a flag: a process runs its whole part of the batch at once, as every text is compared with every other."""
    num_epochs: Annotated[float, EPOCHS] = 1.0
    """Passes through the training data."""
    learning_rate: Annotated[float, LEARNING_RATE] = 3e-5
    max_seq_length: Annotated[int, TOKENS] | None = None
    """Longest text in tokens that the result embeds; None for what the checkpoint was trained on, or can."""
    train_seq_length: Annotated[int, TOKENS] = 32
    """Training texts are cut here, in tokens."""
    eval_every: Annotated[int, NOT_NEGATIVE] = 100
    """Steps between scores on dev; 0 for at the end only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "micro_batch_size", self.global_batch_size)
        if self.global_batch_size < 2:
            raise ValueError("global_batch_size must be at least 2: the other texts of a batch are the negatives")
        if self.head == "on" and self.pooling != "cls":
            raise ValueError("--head on needs --pooling cls: BERT's pooler is a layer over [CLS]")
        if self.mode == "unsupervised" and self.min_label is not None:
            raise ValueError("--min-label chooses among pairs; unsupervised training has none")
        if self.mode == "supervised" and self.split_sentences:
            raise ValueError("--split-sentences is for single texts; supervised training is on pairs")

    @property
    def with_head(self) -> bool:
        """True if [CLS] goes through the pooler in training."""
        return self.head == "on" or (self.head == "auto" and self.pooling == "cls" and self.mode == "unsupervised")


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
    world, tokenizer = run.world, load_tokenizer(recipe.checkpoint)
    check_dropout(recipe)
    task = Embedding(tokenizer, embedding_settings(recipe))
    views = read_views(recipe)
    items = contrastive_items(views, task, recipe)
    dev = read_similarities(recipe.dev, columns=recipe.dev_columns, tokenizer=tokenizer) if recipe.dev else []
    found = input_digests(recipe.checkpoint, recipe.train, recipe.dev)
    origin = provenance(recipe.checkpoint, (*recipe.train, *recipe.dev), recipe, found)
    if not run.begin(RecipeRecord(recipe, found, paths=PATH_FIELDS)):
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = load_model(recipe.checkpoint, "embedding", new_head=True, dropout=recipe.dropout)
    model.bert.pooler.requires_grad_(recipe.with_head)
    objective = ContrastiveObjective(
        pooling=recipe.pooling, with_head=recipe.with_head, temperature=recipe.temperature, world=world
    )
    data = FinetuningData(
        items, objective, global_batch_size=recipe.global_batch_size, seed=recipe.seed, pad_id=tokenizer.pad_id
    )
    rows = scores_before(task, dev, model, world) if dev and world.is_main else {}
    if world.is_main:
        print(f"{len(items):,} texts with their positives", flush=True)
        limit = f"--train-seq-length {recipe.train_seq_length}"
        what = "training texts"
        cuts = {what: report_inputs(what, recipe.checkpoint, task, (item.features for item in items), limit)}
        if dev:
            cuts["dev texts"] = report_inputs("dev texts", recipe.checkpoint, task, task.encode(texts_of(dev)))
        origin["cuts"] = cuts
        _note_known(views, dev)
    progress = train(
        model,
        [Phase(data=data)],
        objective.losses,
        num_steps=max(1, round(recipe.num_epochs * data.num_batches(0))),
        settings=recipe,
        run=run,
        evaluation=Evaluation(
            scores=lambda: _correlations(similarity_scores(task, dev, torch_run(model, task, world.device))),
            every=recipe.eval_every,
        )
        if dev
        else None,
        label="contrastive",
    )
    if world.is_main:
        _finish(
            recipe,
            run,
            model,
            task,
            dev,
            rows,
            origin | training_extent(progress, data.num_batches(0)) | training_machine(world),
        )
    world.barrier()
    return run.checkpoint_path


def check_dropout(recipe: ContrastiveRecipe) -> None:
    """Check that there is dropout: without it, both views of a text are equal.

    Raises:
        ValueError: for unsupervised training without any dropout.
    """
    shape = read_shape(recipe.checkpoint)
    own = max(shape.hidden_dropout_prob, shape.attention_probs_dropout_prob)
    if recipe.mode == "unsupervised" and not (own if recipe.dropout is None else recipe.dropout):
        whose = "has no dropout" if recipe.dropout is None else "would be trained without dropout"
        raise ValueError(
            f"checkpoint `{recipe.checkpoint}` {whose}, so that both views of a text were equal; give --dropout 0.1"
        )


def embedding_settings(recipe: ContrastiveRecipe) -> EmbeddingSettings:
    """Return the settings of the result.

    Raises:
        ValueError: when max_seq_length or train_seq_length is beyond the checkpoint's positions.
    """
    max_positions = read_shape(recipe.checkpoint).max_position_embeddings
    card = read_task_card(recipe.checkpoint)
    max_seq_length = recipe.max_seq_length or (card.settings.max_seq_length if card else max_positions)
    for name, value in (("max_seq_length", max_seq_length), ("train_seq_length", recipe.train_seq_length)):
        if value > max_positions:
            raise ValueError(f"{name} `{value}` is above the checkpoint's {max_positions} positions")
    return EmbeddingSettings(max_seq_length=max_seq_length, pooling=recipe.pooling, normalize=recipe.normalize)


def read_views(recipe: ContrastiveRecipe) -> Examples:
    """Read the training texts with their positives and negatives (Views).

    Raises:
        ValueError: naming files without any, or data in which some texts have a negative and others none.
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
    """Yield each text's views with their location."""
    if recipe.mode == "supervised":
        yield from read_positives(path, recipe.columns, recipe.min_label).located()
        return
    for place, text in read_texts(path, recipe.columns).located():
        for part in split_sentences(text) if recipe.split_sentences else [text]:
            yield place, (part, part)


def _note_known(views: Examples, dev: Sequence[RegressionExample]) -> None:
    known = {frozenset(item[:2]) for item in views}
    if num_known := sum(frozenset((pair.text, pair.text_pair)) in known for pair in dev):
        print(f"note: {num_known:,} of {len(dev):,} dev pairs are in the training data, too", flush=True)


def contrastive_items(views: Examples, task: Embedding, recipe: ContrastiveRecipe) -> list[LabelledFeatures]:
    """An item for each text: its views, with the same number where they are the same to the network.

    Raises:
        ValueError: when there is nothing to tell apart.
    """
    places: dict[str, str] = {}
    for place, item in views.located():
        for text in item:
            places.setdefault(text, place)
    texts = Examples((place, text) for text, place in places.items())
    task = Embedding(task.tokenizer, EmbeddingSettings(max_seq_length=recipe.train_seq_length))
    features = {text: windows[0] for text, windows in zip(texts, encode_examples(task, texts), strict=True)}
    numbers: dict[bytes, int] = {}
    number_of = {text: numbers.setdefault(item.input_ids.tobytes(), len(numbers)) for text, item in features.items()}
    if len(numbers) < 2:
        raise ValueError(f"all texts of `{recipe.train[0]}` are the same; there are no negatives to learn from")
    return [
        LabelledFeatures(tuple(features[text] for text in item), tuple(number_of[text] for text in item))
        for item in views
    ]


def scores_before(
    task: Embedding, dev: Sequence[RegressionExample], model: BertModel, world: World
) -> dict[str, dict[str, float]]:
    """Return the scores of the checkpoint before training, with both poolings, and of baselines without a network."""
    rows: dict[str, dict[str, float]] = {}
    for pooling in get_args(Pooling):
        other = task.with_settings(pooling=pooling)
        rows[f"before, {pooling}"] = similarity_scores(other, dev, torch_run(model, other, world.device))
    words = mean_of_words(model.bert.embeddings.word.weight.detach().cpu().numpy(), task.tokenizer)
    return rows | {
        "mean of word embeddings": vector_scores(dev, words),
        "word overlap": word_overlap(dev, task.tokenizer),
    }


def _correlations(scores: dict[str, float]) -> dict[str, float]:
    return {name: scores[name] for name in ("spearman", "pearson")}


def _finish(
    recipe: ContrastiveRecipe,
    run: RunDirectory,
    model: BertModel,
    task: Embedding,
    dev: Sequence[RegressionExample],
    rows: dict[str, dict[str, float]],
    origin: dict[str, Any],
) -> None:
    """Score the weights, write the checkpoint."""
    scores: dict[str, Any] = {}
    if dev:
        rows = {"dev": similarity_scores(task, dev, torch_run(model, task, run.world.device)), **rows}
        scores = {**rows, "num_dev_examples": len(dev)}
    card = TaskCard(task=task.name, settings=task.settings, scores=scores, provenance=origin)
    write_result(run, model, tokenizer_from=recipe.checkpoint, card=card)
    if dev:
        print(format_scores(rows))


def recipe_from_arguments() -> ContrastiveRecipe:
    """Parse the recipe; dev data have the columns of the training data unless flags say otherwise."""
    read = partial(parse, ContrastiveRecipe, "training.contrastive", __doc__)
    recipe = read()
    return (
        read(default=replace(recipe, dev_columns=existing_columns(recipe.dev, recipe.columns)))
        if recipe.dev
        else recipe
    )


@command
def main() -> None:
    """Command line."""
    recipe = recipe_from_arguments()
    with world() as peers:
        checkpoint = train_embedding(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
