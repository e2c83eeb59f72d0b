"""Pretrain an encoder: masked language modelling and next sentence prediction (section 3.1 of BERT's paper).

    python -m training.pretrain mini --corpus build/corpus --run-dir runs/mini --num-steps 20000
    python -m training.pretrain modern --corpus build/corpus --run-dir runs/modern --max-minutes 60
    python -m training.launch 2 training.pretrain mini --corpus build/corpus --run-dir runs/mini

The first word names a recipe: a published shape (tiny, mini, small, medium, base, large) with the paper's settings, or
`modern`, for short runs, with ModernBERT's blocks. Flags replace its values; the defaults below are those of `mini`.
The same command resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro
from torch import nn

from tasks.masked_lm import MaskedLMSettings
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.hub import checkpoint_record
from training.checkpoint.reader import create_model, load_model, load_tokenizer, read_config, read_shape
from training.checkpoint.sentence_transformers import checkpoint_directory
from training.checkpoint.task_card import TaskCard, read_licence, read_task_card
from training.checkpoint.weights import checkpoint_digest, network_digest
from training.command_line.bounds import COUNT, FRACTION, NOT_NEGATIVE, POSITIVE, TOKENS, refuse_unused
from training.command_line.command import command, parse
from training.data.pretraining import Masking, PretrainingExamples
from training.data.pretraining_batches import PretrainingData
from training.data.pretraining_warnings import LENGTH_FLAGS, report_pairs, warn_about_dev_pairs, whole_words_note
from training.loop.distributed import World, resolve_on_all, world
from training.loop.loss_monitor import LossMonitor, Plateau
from training.loop.recipe import RecipeRecord, recipe_fields
from training.loop.run_directory import RunDirectory
from training.loop.train import train
from training.loop.types import Evaluation, LoopSettings, Phase
from training.model.config import EncoderConfig
from training.model.heads import BertForPreTraining, BertModel
from training.model.initialization import initialize_local
from training.model.modernbert_encoder import ModernBertConfig
from training.objectives.baselines import masked_unigram
from training.objectives.encoder_distillation import EncoderDistillation
from training.objectives.masked_lm import MaskedLM, evaluate_pretraining
from training.objectives.replaced_tokens import ReplacedTokenDetection, base_rate_scores
from training.reports.model_card import score_rows
from training.reports.result import training_machine, write_result
from training.reports.tables import format_scores
from training.text.corpus import Corpus

_TEACHER_FIELDS = ("token_weight", "relation_weight", "relation_heads", "teacher_layer")


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(LoopSettings):
    """Pretrain an encoder on a prepared corpus."""

    corpus: Path
    """Directory written by training.corpus."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    dev_corpus: Path | None = None
    """Held-out corpus, prepared with the same tokenizer, for MLM loss and accuracy."""
    init: Path | None = None
    """Checkpoint to start from instead of new weights, also of the hub (org/name), with its family and shape."""
    initialization: Literal["bert", "local"] = "bert"
    """Initialization of new weights. local: heads attend to neighbouring tokens from the start, which avoids the
    plateau of short runs."""
    num_steps: Annotated[int, COUNT] = 10_000
    """Optimizer steps."""
    family: Literal["bert", "modernbert"] = "bert"
    """Family of new weights (docs/reference/encoders.md), of the same size."""
    hidden_size: int = 256
    """Size of a hidden state."""
    num_hidden_layers: int = 4
    """Layers of the encoder."""
    num_attention_heads: int = 4
    """Attention heads of a layer; they divide the hidden size."""
    max_position_embeddings: int = 512
    """Longest sequence that the network can read, in tokens."""
    max_seq_length: Annotated[int, TOKENS] = 128
    """Tokens of an example, special tokens included."""
    long_seq_length: Annotated[int, TOKENS] | None = None
    """Tokens of an example in the last part of the run (the paper: 512); None for the same length throughout."""
    long_fraction: Annotated[float, FRACTION] = 0.1
    """Fraction of the steps with long examples, at the end of the run."""
    masking_rate: float = 0.15
    """Fraction of tokens to predict, special tokens included."""
    mask_fraction: float = 0.8
    """Fraction of the predicted tokens that become [MASK]."""
    random_fraction: float = 0.1
    """Fraction of the predicted tokens that become a random token; the rest stay as they are."""
    whole_words: bool = False
    """Predict all tokens of a word together. In Chinese text, whose tokens are characters, this needs a corpus that was
    prepared with --words."""
    short_seq_prob: Annotated[float, FRACTION] = 0.1
    """Fraction of documents that are cut into shorter examples."""
    next_sentences: bool = True
    """Predict whether a second sentence is the next or a random one. Otherwise all pairs are consecutive text."""
    objective: Literal["masked-lm", "replaced-tokens", "distillation"] = "masked-lm"
    """masked-lm: predict masked tokens; replaced-tokens: predict which tokens a small masked LM, the generator, has
    replaced (ELECTRA); distillation: masked-lm, and the outputs of a teacher."""
    teacher: Path | None = None
    """distillation: checkpoint to learn from, also of the hub (org/name); its vocabulary must be that of the corpus."""
    token_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    """distillation: weight of the teacher's probabilities of masked tokens, relative to the tokens; 0 for a teacher
    that is no masked LM."""
    relation_weight: Annotated[float, NOT_NEGATIVE] = 1.0
    """distillation: weight of the relations between tokens in an attention layer (MiniLMv2)."""
    relation_heads: Annotated[int, COUNT] = 12
    """distillation: parts into which queries, keys and values are split for relations; it divides both hidden sizes."""
    teacher_layer: int = -1
    """distillation: layer of the teacher whose relations the last layer learns, from 0; -1 for the last."""
    generator_layers: Annotated[int, COUNT] = 1
    """replaced-tokens: layers of the generator."""
    discriminator_weight: Annotated[float, POSITIVE] = 50.0
    """replaced-tokens: weight of the discriminator's loss, relative to the generator's."""
    corrector_weight: Annotated[float, POSITIVE] = 1.0
    """replaced-tokens: weight of the corrector's loss, relative to the generator's. The corrector predicts the original
    tokens, which keeps the network a masked LM."""
    eval_every: Annotated[int, NOT_NEGATIVE] = 1000
    """Steps between evaluations on dev_corpus."""
    eval_examples: Annotated[int, COUNT] = 512
    """Examples of dev_corpus to evaluate on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.masking  # raises if its fields are wrong
        self._check_objective()
        if not self.long_seq_length:
            refuse_unused(self, "long_fraction", "needs --long-seq-length")
        if self.init:
            for name in ("initialization", "family"):
                refuse_unused(self, name, "is for new weights, but --init gives trained ones: leave out one of them")
            return  # its positions count, which `_check_same_tokens` knows
        if self.family != "bert" and self.next_sentences:
            raise ValueError(
                f"family `{self.family}` is trained without next sentences: give --no-next-sentences, or --family bert"
            )
        for flag, length in (("--max-seq-length", self.max_seq_length), ("--long-seq-length", self.long_seq_length)):
            if length and length > self.max_position_embeddings:
                raise ValueError(
                    f"{flag} `{length}` is above --max-position-embeddings `{self.max_position_embeddings}`"
                )

    def _check_objective(self) -> None:
        if self.objective != "replaced-tokens":
            for name in ("generator_layers", "discriminator_weight", "corrector_weight"):
                refuse_unused(self, name, "is for --objective replaced-tokens")
        elif self.family != "bert":
            refuse_unused(self, "objective", f"is not for family `{self.family}`: give --family bert")
        if self.objective != "distillation":
            for name in ("teacher", *_TEACHER_FIELDS):
                refuse_unused(self, name, "is for --objective distillation")
        elif self.teacher is None:
            raise ValueError("--objective distillation needs --teacher, the checkpoint to learn from")
        elif not (self.token_weight or self.relation_weight):
            raise ValueError("nothing is learnt from the teacher: give a weight above 0, such as --relation-weight 1")
        elif self.compile == "on":
            raise ValueError("--objective distillation does not work with --compile on: leave it out")
        else:
            object.__setattr__(self, "compile", "off")

    @property
    def training_objective(self) -> MaskedLM:
        """Objective of the run, as `objective` names it."""
        if self.objective == "masked-lm":
            return MaskedLM(next_sentences=self.next_sentences)
        if self.objective == "distillation":
            assert self.teacher
            weights = {name: getattr(self, name) for name in _TEACHER_FIELDS}
            return EncoderDistillation(self.teacher, **weights, next_sentences=self.next_sentences)
        return ReplacedTokenDetection(
            generator_layers=self.generator_layers,
            discriminator_weight=self.discriminator_weight,
            corrector_weight=self.corrector_weight,
            next_sentences=self.next_sentences,
        )

    @property
    def masking(self) -> Masking:
        """Masking of the run."""
        return Masking(
            rate=self.masking_rate,
            mask_fraction=self.mask_fraction,
            random_fraction=self.random_fraction,
            whole_words=self.whole_words,
        )

    def shape(self, tokenizer: Tokenizer) -> EncoderConfig:
        """Return the shape of new weights."""
        sizes: dict[str, Any] = {
            "vocab_size": tokenizer.vocab_size,
            "pad_token_id": tokenizer.pad_id,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
            "max_position_embeddings": self.max_position_embeddings,
        }
        if self.family == "modernbert":
            # A gated feed-forward network has three matrices, BERT's two of 4 times the hidden size. With this size, a
            # multiple of 64, both have about the same number of parameters.
            gated_size = max(64, round(8 / 3 * self.hidden_size / 64) * 64)
            return ModernBertConfig(**sizes, intermediate_size=gated_size, layer_norm_eps=1e-5)
        return EncoderConfig(**sizes, intermediate_size=4 * self.hidden_size)

    def examples(self, corpus: Corpus, **settings: Any) -> PretrainingExamples:
        """Return the examples of a corpus; `settings` are those of `PretrainingExamples`."""
        return PretrainingExamples(corpus, next_sentences=self.next_sentences, **settings)


def _shape(num_layers: int, hidden_size: int, num_heads: int) -> list[str]:
    shape = {"num-hidden-layers": num_layers, "hidden-size": hidden_size, "num-attention-heads": num_heads}
    return [word for name, value in shape.items() for word in (f"--{name}", str(value))]


RECIPES = {
    "tiny": _shape(2, 128, 2),
    "mini": _shape(4, 256, 4),
    "small": _shape(4, 512, 8),
    "medium": _shape(8, 512, 8),
    "base": _shape(12, 768, 12),
    "large": _shape(24, 1024, 16),
    "modern": [
        *_shape(4, 256, 4),
        *("--dropout", "0", "--masking-rate", "0.45", "--no-next-sentences"),
        *("--learning-rate", "2e-3", "--betas", "0.9", "0.98", "--warmup-ratio", "0.06"),
        *("--max-minutes", "30", "--num-steps", "1000000"),
    ],
}
"""Flags of each recipe: the published shapes (google-research/bert README), and `modern` for short runs: no dropout,
more masks, no next sentences, a large learning rate that falls with the time left (Izsak et al. 2021, Geiping and
Goldstein 2022, docs/experiments)."""
NEW_WEIGHTS = {"modern": ["--family", "modernbert", "--initialization", "local"]}
"""Flags of a recipe that a run from a checkpoint leaves out."""


def pretrain(recipe: PretrainRecipe, world: World) -> Path:
    """Pretrain, or resume.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: if the corpus cannot be used, or the run was started with another recipe.
    """
    with RunDirectory(recipe.run_dir, world) as run:
        corpus, dev_corpus = corpora(recipe)
        record = recipe_record(recipe, corpus, dev_corpus)
        if not run.begin(record):
            return run.checkpoint_path
        torch.manual_seed(recipe.seed)
        objective = recipe.training_objective
        model = objective.network(_create_model(recipe, corpus))
        if world.is_main:
            _report_corpora(recipe, model, corpus, dev_corpus)
        data = _data(recipe, corpus, objective)
        # The dev examples are masked as in the paper for all recipes, so that runs can be compared.
        dev = recipe.examples(dev_corpus, max_seq_length=recipe.max_seq_length) if dev_corpus else None
        world.on_main(lambda: None if run.states() else _report_pairs(data, recipe, dev))  # takes a pass of pairs
        evaluation = _evaluation(model, recipe, dev, objective, world) if dev else None
        origin = _provenance(recipe, record, corpus)
        progress = train(
            model,
            _phases(data, recipe),
            objective.losses,
            num_steps=recipe.num_steps,
            settings=recipe,
            run=run,
            weights=objective.weights,
            evaluation=evaluation,
            monitor=LossMonitor(_plateau(corpus, recipe, objective, data[0].examples.masking)),
            label="pretrain",
        )
        if world.is_main:
            origin |= {"num_steps": progress.step, "num_tokens": progress.num_tokens} | training_machine(world)
            scores = _scores(evaluation, recipe, corpus, dev) if evaluation and dev else {}
            card = TaskCard(
                task="masked-lm",
                settings=MaskedLMSettings(max_seq_length=recipe.long_seq_length or recipe.max_seq_length),
                scores=scores,
                provenance={"pretraining": origin},
            )
            write_result(run, objective.result(model), tokenizer_from=recipe.corpus, card=card)
            if rows := score_rows(scores):
                print(format_scores(rows), flush=True)
        world.barrier()
        return run.checkpoint_path


# Corpora


def corpora(recipe: PretrainRecipe) -> tuple[Corpus, Corpus | None]:
    """Open the corpus and, if there is one, the held-out corpus.

    Raises:
        ValueError: if they cannot be read, or were prepared with different tokenizers.
    """
    corpus, dev = Corpus(recipe.corpus), Corpus(recipe.dev_corpus) if recipe.dev_corpus else None
    if dev and dev.info["tokenizer_sha256"] != corpus.info["tokenizer_sha256"]:
        raise ValueError(f"corpus `{recipe.dev_corpus}` was prepared with another tokenizer than `{recipe.corpus}`")
    return corpus, dev


def recipe_record(recipe: PretrainRecipe, corpus: Corpus, dev: Corpus | None) -> RecipeRecord:
    """Return the record of a recipe, with digests of its corpora and of its starting checkpoint."""
    digests = {"corpus_digest": corpus.digest, "dev_corpus_digest": dev.digest if dev else None}
    if recipe.init:
        read_config(recipe.init)  # raises if it is no checkpoint
        digests["init_sha256"] = checkpoint_digest(recipe.init)
    if recipe.teacher:
        _check_same_tokens(recipe.teacher, recipe, corpus)
        digests["teacher_sha256"] = network_digest(recipe.teacher)
    return RecipeRecord(recipe, digests, paths=("corpus", "dev_corpus", "init", "teacher"))


def _provenance(recipe: PretrainRecipe, record: RecipeRecord, corpus: Corpus) -> dict[str, Any]:
    """Return the provenance of a run: its starting checkpoint, and its pretraining if recorded; recipe and teacher."""
    origin: dict[str, Any] = {}
    if recipe.init:
        origin["init"] = {**checkpoint_record(recipe.init), "sha256": record.values["init_sha256"]}
        card = read_task_card(recipe.init)
        if card and (before := card.provenance.get("pretraining")):
            origin["before"] = before
    origin |= {"recipe": recipe_fields(recipe), "corpus": corpus.digest}
    if recipe.teacher:
        digest, licence = checkpoint_digest(recipe.teacher), read_licence(recipe.teacher)
        origin["teachers"] = [{**checkpoint_record(recipe.teacher), "sha256": digest, "licence": licence}]
    return origin


def _report_corpora(recipe: PretrainRecipe, model: BertModel, corpus: Corpus, dev: Corpus | None) -> None:
    """Describe network and corpus, with notes."""
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    print(
        f"L{config.num_hidden_layers} H{config.hidden_size} A{config.num_attention_heads}, "
        f"vocabulary {config.vocab_size:,}, {size / 1e6:.1f}M parameters; "
        f"corpus of {corpus.info['num_tokens']:,} tokens in {corpus.num_documents:,} documents",
        flush=True,
    )
    if recipe.whole_words and (note := whole_words_note(corpus)):
        print(f"note: {note}", flush=True)
    if dev and dev.digest == corpus.digest:
        print("note: the dev corpus is the training corpus, so its loss says nothing about other text", flush=True)


def _report_pairs(data: Sequence[PretrainingData], recipe: PretrainRecipe, dev: PretrainingExamples | None) -> None:
    """Print statistics of the pairs of each sequence length, and warnings about the dev pairs."""
    for some, flag in zip(data, LENGTH_FLAGS, strict=False):
        report_pairs(some.examples, flag)
    if dev:
        warn_about_dev_pairs(dev, recipe.eval_examples)


# Network and examples


def _create_model(recipe: PretrainRecipe, corpus: Corpus) -> BertForPreTraining:
    if recipe.init:
        model = load_model(recipe.init, "masked-lm", new_head=True, dropout=recipe.dropout)
        _check_same_tokens(recipe.init, recipe, corpus)
    else:
        model = create_model("masked-lm", recipe.shape(corpus.tokenizer), dropout=recipe.dropout)
    assert isinstance(model, BertForPreTraining)
    if recipe.initialization == "local":
        initialize_local(model, corpus.token_counts())
    return model


def _check_same_tokens(checkpoint: Path, recipe: PretrainRecipe, corpus: Corpus) -> None:
    """Raise if a checkpoint cannot read the sequences of the run."""
    if load_tokenizer(checkpoint).backend.get_vocab() != corpus.tokenizer.backend.get_vocab():
        raise ValueError(f"the vocabulary of `{checkpoint}` is not that of corpus `{recipe.corpus}`")
    longest = max(recipe.max_seq_length, recipe.long_seq_length or 0)
    if longest > (num_positions := read_shape(checkpoint).num_positions):
        raise ValueError(f"`{checkpoint}` has {num_positions} positions, too few for {longest} tokens")


def _data(recipe: PretrainRecipe, corpus: Corpus, objective: MaskedLM) -> list[PretrainingData]:
    """Return the batches of each sequence length."""
    rules: dict[str, Any] = {name: getattr(recipe, name) for name in ("masking", "short_seq_prob", "seed")}
    lengths = filter(None, (recipe.max_seq_length, recipe.long_seq_length))
    examples = [recipe.examples(corpus, max_seq_length=length, **rules) for length in lengths]
    return [PretrainingData(some, recipe.global_batch_size, objective.targets) for some in examples]


def _phases(data: Sequence[PretrainingData], recipe: PretrainRecipe) -> list[Phase]:
    """Return a phase of short examples, then one of long examples in smaller micro-batches."""
    if not recipe.long_seq_length:
        return [Phase(data=data[0])]
    fewer = max(1, recipe.micro_batch_size * recipe.max_seq_length // recipe.long_seq_length)
    return [Phase(data=data[0], end=1 - recipe.long_fraction), Phase(data=data[1], micro_batch_size=fewer)]


# Evaluation


def _evaluation(
    model: nn.Module, recipe: PretrainRecipe, dev: PretrainingExamples, objective: MaskedLM, world: World
) -> Evaluation:
    def scores() -> dict[str, float]:
        options: dict[str, Any] = {"num_examples": recipe.eval_examples, "device": world.device, "dtype": recipe.dtype}
        return evaluate_pretraining(model, dev, objective, **options)

    return Evaluation(scores=scores, every=recipe.eval_every)


def _scores(evaluation: Evaluation, recipe: PretrainRecipe, corpus: Corpus, dev: PretrainingExamples) -> dict[str, Any]:
    """Return the scores on dev and those of the unigram baseline."""
    num_examples = min(recipe.eval_examples, dev.num_examples(0))
    baseline = masked_unigram(corpus.token_counts(), dev.corpus.token_counts(), dev.masking)
    scores = evaluation.scores()
    if "nsp_accuracy" in scores:
        random_fraction = float(dev.nsp_labels(0)[:num_examples].mean())
        baseline["nsp_accuracy"] = max(random_fraction, 1 - random_fraction)
    return {"dev": scores, UNIGRAM: baseline | base_rate_scores(scores), "num_dev_examples": num_examples}


UNIGRAM = "unigram baseline"
"""Name of the baseline in scores."""


def _plateau(corpus: Corpus, recipe: PretrainRecipe, objective: MaskedLM, masking: Masking) -> Plateau:
    """Return the masked LM loss of token frequencies alone, where training stays until it uses context."""
    counts, hint = corpus.token_counts(), " or raise --learning-rate"
    if recipe.initialization != "local" and not recipe.init:
        hint = ", raise --learning-rate, or start with --initialization local"
    return Plateau(
        loss=objective.masked_lm_loss,
        value=masked_unigram(counts, counts, masking)["mlm_loss"],
        meaning="token frequencies alone",
        hint=f"no context is used yet; train longer{hint}",
    )


# Command line


def _command_line(
    recipe: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE]", help_behavior_hint="")] = "",
    *,
    settings: Annotated[PretrainRecipe, tyro.conf.arg(name="")],
) -> PretrainRecipe:
    """Define the command line, for its help; the flags of the named recipe are inserted before.

    Args:
        recipe: The first word: tiny, mini, small, medium, base, large or modern; mini if left out.
    """
    if recipe:
        raise ValueError(f"a recipe comes before all flags: `{recipe}`")
    return settings


def recipe_from_arguments(arguments: Sequence[str]) -> PretrainRecipe:
    """Parse a command line: the name of a recipe, then flags.

    Raises:
        ValueError: if the name is unknown.
    """
    flags = list(arguments)
    if flags and not flags[0].startswith("-"):
        name = flags.pop(0)
        if name not in RECIPES:
            raise ValueError(f"unknown recipe: `{name}` (one of: {', '.join(RECIPES)})")
        starts_anew = not any(flag == "--init" or flag.startswith("--init=") for flag in flags)
        flags = [*RECIPES[name], *(NEW_WEIGHTS.get(name, []) if starts_anew else []), *flags]
    return parse(_command_line, "training.pretrain", __doc__, flags)


@command
def main() -> None:
    """Command line."""
    recipe = recipe_from_arguments(sys.argv[1:])
    with world() as peers:
        init, teacher = (
            checkpoint_directory(resolve_on_all(path, peers)) if path else None
            for path in (recipe.init, recipe.teacher)
        )
        recipe = replace(recipe, init=init, teacher=teacher)
        checkpoint = pretrain(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
