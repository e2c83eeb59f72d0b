"""Pretrain BERT: masked language modelling and next sentence prediction (section 3.1 of the paper).

    python -m training.pretrain mini --corpus build/corpus --run-dir runs/mini --num-steps 20000
    torchrun --nproc-per-node 2 -m training.pretrain mini --corpus build/corpus --run-dir runs/mini

The first word names a published shape; every field of the recipe is a flag. The same command again resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks.features import Features, collate
from tasks.masked_lm import MaskedLMSettings
from training.checkpoint import TaskCard, create_model, load_model, save_checkpoint
from training.command import command, parse
from training.corpus import Corpus
from training.distributed import World, world
from training.initialization import initialize_local
from training.loop import PLACES_AND_PACE, Batch, LoopSettings, Run, autocast, recipe_fields, train
from training.model import BertConfig, BertForPreTraining, BertModel
from training.plot import plot_run
from training.pretraining_examples import PretrainingExample, PretrainingExamples


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(LoopSettings):
    """Pretrain BERT on a prepared corpus."""

    corpus: Path
    """Directory written by training.corpus."""
    run_dir: Path
    """Run directory: metrics, resumable state, and in the end `checkpoint/`."""
    dev_corpus: Path | None = None
    """Held-out corpus, prepared with the same tokenizer, for MLM loss and accuracy."""
    init: Path | None = None
    """Checkpoint to go on from, instead of new weights; its shape counts."""
    initialization: Literal["bert", "local"] = "bert"
    """New weights: drawn as in the reference code, or with heads that look at the neighbouring tokens from the start,
    which spares small budgets the plateau."""
    num_steps: int = 10_000
    """Optimizer steps."""
    hidden_size: int = 256
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    max_position_embeddings: int = 512
    max_seq_length: int = 128
    """Tokens of an example, specials included."""
    masking_rate: float = 0.15
    """Share of tokens to predict."""
    short_seq_prob: float = 0.1
    """Share of documents that are cut into shorter examples."""
    eval_every: int = 1000
    """Steps between evaluations on dev_corpus."""
    eval_examples: int = 512
    """Examples of dev_corpus to evaluate on."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("num_steps", 1), ("eval_every", 0), ("eval_examples", 1), ("max_seq_length", 8)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}: `{getattr(self, name)}`")
        if not 0 < self.masking_rate <= 1:
            raise ValueError(f"masking_rate lies above 0 and up to 1: `{self.masking_rate}`")
        if not 0 <= self.short_seq_prob <= 1:
            raise ValueError(f"short_seq_prob lies between 0 and 1: `{self.short_seq_prob}`")
        if self.init and self.initialization != "bert":
            raise ValueError("initialization is of new weights; leave it out, or init")
        if self.max_seq_length > self.max_position_embeddings:
            raise ValueError(
                f"max_seq_length `{self.max_seq_length}` is above "
                f"max_position_embeddings `{self.max_position_embeddings}`"
            )


SHAPES = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
"""Layers, hidden size and heads of the published models (google-research/bert README)."""


IGNORED = -100
"""Label of positions that are not to be predicted."""


class PretrainingData:
    """Global batches of pretraining examples; the rest of an epoch that does not fill a batch is left out."""

    def __init__(self, examples: PretrainingExamples, global_batch_size: int) -> None:
        self.examples = examples
        self.global_batch_size = global_batch_size
        if examples.num_examples(0) < global_batch_size:
            raise ValueError(
                f"the corpus gives {examples.num_examples(0)} examples, less than one batch of {global_batch_size}; "
                "lower --global-batch-size or add text"
            )

    def num_batches(self, epoch: int) -> int:
        """Whole batches in an epoch."""
        return self.examples.num_examples(epoch) // self.global_batch_size

    def batch(self, epoch: int, index: int, part: slice) -> Batch:
        """The examples `part` of a global batch."""
        first = index * self.global_batch_size
        chosen = range(first + part.start, first + part.stop)
        return pretraining_batch([self.examples.example(epoch, number) for number in chosen])


def pretraining_batch(examples: Sequence[PretrainingExample]) -> Batch:
    """Pad examples; masked positions are flat (row * length + column), so that only they reach the vocabulary head.

    Their number is rounded up with labels that are ignored: oneDNN compiles and keeps a kernel for every shape it meets
    (a new shape each step would make memory grow for hours).
    """
    arrays = collate([Features(input_ids=x.input_ids, token_type_ids=x.token_type_ids) for x in examples])
    length = arrays["input_ids"].shape[1]
    positions = np.concatenate([row * length + x.masked_positions for row, x in enumerate(examples)])
    labels = np.concatenate([x.masked_labels for x in examples])
    counts = {"mlm": len(labels), "nsp": len(examples)}
    excess = -len(labels) % 64
    inputs = {name: torch.from_numpy(array) for name, array in arrays.items()}
    inputs["masked_positions_N"] = torch.from_numpy(np.pad(positions, (0, excess)))
    targets = {
        "mlm": torch.from_numpy(np.pad(labels, (0, excess), constant_values=IGNORED)),
        "nsp": torch.tensor([x.nsp_label for x in examples]),
    }
    return Batch(inputs, targets, counts, int(arrays["attention_mask"].sum()))


def pretraining_losses(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Cross entropy of masked tokens and of next sentences, each summed."""
    outputs = network(**batch.inputs)
    mlm = F.cross_entropy(outputs["logits"].float(), batch.targets["mlm"], ignore_index=IGNORED, reduction="sum")
    nsp = F.cross_entropy(outputs["nsp_logits"].float(), batch.targets["nsp"], reduction="sum")
    return {"mlm": mlm, "nsp": nsp}


@torch.inference_mode()
def evaluate_pretraining(
    model: nn.Module, examples: PretrainingExamples, *, num_examples: int, device: torch.device, dtype: Any = "fp32"
) -> dict[str, float]:
    """Mean MLM loss (nats), MLM accuracy and NSP accuracy on the first examples of epoch 0."""
    model.eval()
    totals = dict.fromkeys(("mlm_loss", "mlm_accuracy", "nsp_accuracy"), 0.0)
    num_masks = num_pairs = 0
    last = min(num_examples, examples.num_examples(0))
    for first in range(0, last, 32):
        batch = pretraining_batch([examples.example(0, i) for i in range(first, min(first + 32, last))]).to(device)
        with autocast(dtype, device):
            outputs = model(**batch.inputs)
        labels, logits = batch.targets["mlm"], outputs["logits"].float()
        totals["mlm_loss"] += float(F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
        totals["mlm_accuracy"] += int((logits.argmax(-1) == labels).sum())
        totals["nsp_accuracy"] += int((outputs["nsp_logits"].argmax(-1) == batch.targets["nsp"]).sum())
        num_masks, num_pairs = num_masks + batch.counts["mlm"], num_pairs + batch.counts["nsp"]
    counts = {"mlm_loss": num_masks, "mlm_accuracy": num_masks, "nsp_accuracy": num_pairs}
    return {name: total / counts[name] for name, total in totals.items()}


def pretrain(recipe: PretrainRecipe, world: World) -> Path:
    """Pretrain, or go on with it.

    Returns:
        The checkpoint directory.

    Raises:
        ValueError: for a corpus that cannot be used, or a run that was started differently.
    """
    run = Run(recipe.run_dir, world)
    corpus = Corpus(recipe.corpus)
    fields = recipe_fields(recipe)
    run.check_recipe(fields | {"corpus_digest": corpus.digest}, may_differ=_MAY_DIFFER)
    if run.checkpoint_path.exists():
        return run.checkpoint_path
    torch.manual_seed(recipe.seed)
    model = _create(recipe, corpus)
    if world.is_main:
        print(_describe(model, corpus), flush=True)
    position = train(
        model,
        PretrainingData(_examples(corpus, recipe), recipe.global_batch_size),
        pretraining_losses,
        num_steps=recipe.num_steps,
        settings=recipe,
        run=run,
        evaluate=_evaluator(model, recipe, corpus, world),
        eval_every=recipe.eval_every,
        label="pretrain",
    )
    if world.is_main:
        provenance: dict[str, Any] = {"recipe": fields}
        provenance |= {"corpus": corpus.digest, "num_tokens": position.num_tokens, "torch": torch.__version__}
        card = TaskCard(
            task="masked-lm",
            settings=MaskedLMSettings(max_seq_length=recipe.max_seq_length),
            provenance={"pretraining": provenance},
        )
        save_checkpoint(run.checkpoint_path, model, tokenizer_from=recipe.corpus, card=card)
        plot_run(recipe.run_dir)
        run.drop_states()
    world.barrier()
    return run.checkpoint_path


_MAY_DIFFER = (*PLACES_AND_PACE, "corpus", "dev_corpus")


def _create(recipe: PretrainRecipe, corpus: Corpus) -> BertModel:
    if recipe.init:
        model = load_model(recipe.init, "masked-lm", new_head=True, dropout=recipe.dropout)
        if model.config.vocab_size != corpus.info["vocab_size"]:
            raise ValueError(f"the vocabulary of `{recipe.init}` is not that of corpus `{recipe.corpus}`")
        return model
    config = BertConfig(
        vocab_size=corpus.info["vocab_size"],
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        intermediate_size=4 * recipe.hidden_size,
        max_position_embeddings=recipe.max_position_embeddings,
    )
    model = create_model("masked-lm", config, dropout=recipe.dropout)
    if recipe.initialization == "local":
        assert isinstance(model, BertForPreTraining)
        initialize_local(model, corpus.token_counts())
    return model


def _examples(corpus: Corpus, recipe: PretrainRecipe) -> PretrainingExamples:
    return PretrainingExamples(
        corpus,
        max_seq_length=recipe.max_seq_length,
        masking_rate=recipe.masking_rate,
        short_seq_prob=recipe.short_seq_prob,
        seed=recipe.seed,
    )


def _evaluator(
    model: nn.Module, recipe: PretrainRecipe, corpus: Corpus, world: World
) -> Callable[[], dict[str, float]] | None:
    if recipe.dev_corpus is None:
        return None
    dev = Corpus(recipe.dev_corpus)
    if dev.info["tokenizer_sha256"] != corpus.info["tokenizer_sha256"]:
        raise ValueError(f"corpus `{recipe.dev_corpus}` was prepared with another tokenizer than `{recipe.corpus}`")
    examples = PretrainingExamples(dev, max_seq_length=recipe.max_seq_length)
    return lambda: evaluate_pretraining(
        model, examples, num_examples=recipe.eval_examples, device=world.device, dtype=recipe.dtype
    )


def _describe(model: BertModel, corpus: Corpus) -> str:
    config, size = model.config, sum(parameter.numel() for parameter in model.parameters())
    return (
        f"L{config.num_hidden_layers} H{config.hidden_size} A{config.num_attention_heads}, "
        f"vocabulary {config.vocab_size:,}, {size / 1e6:.1f}M parameters; "
        f"corpus of {corpus.info['num_tokens']:,} tokens in {corpus.num_documents:,} documents"
    )


def recipe_from_arguments(arguments: Sequence[str]) -> PretrainRecipe:
    """The recipe of a command line: a shape's name, then flags."""
    if arguments and arguments[0] in SHAPES:
        layers, hidden, heads = SHAPES[arguments[0]]
        shape = ["--num-hidden-layers", str(layers), "--hidden-size", str(hidden), "--num-attention-heads", str(heads)]
        return parse(PretrainRecipe, "training.pretrain", __doc__, [*shape, *arguments[1:]])
    if arguments and not arguments[0].startswith("-"):
        raise ValueError(f"unknown shape: `{arguments[0]}` (one of: {', '.join(SHAPES)})")
    return parse(PretrainRecipe, "training.pretrain", __doc__, arguments)


@command
def main() -> None:
    """Command line."""
    recipe = recipe_from_arguments(sys.argv[1:])
    with world() as peers:
        checkpoint = pretrain(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
