"""Pretrain a language model that attends in one direction, or in both directions by separate stacks of layers.

python -m recipes.ablations.pretrain --direction left-to-right --no-next-sentences --corpus build/corpus --run-dir a
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from recipes.ablations.model import Direction, register, with_changes
from tasks.text.tokenizer import Tokenizer
from training.checkpoint.task_card import CARD_FILE
from training.command_line.bounds import refuse_unused
from training.command_line.command import command, parse
from training.data.pretraining import Masking, PretrainingExamples
from training.loop.distributed import World, world
from training.model.config import EncoderConfig
from training.pretrain import PretrainRecipe, pretrain
from training.text.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class AblationPretrainRecipe(PretrainRecipe):
    """Pretrain BERT, or a network that differs from it in the direction of attention."""

    direction: Direction = "both"
    """Direction of attention. Other values than `both` are language models, which predict the next token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.direction == "both":
            return
        for name in ("init", "family", "objective", "whole_words"):
            refuse_unused(self, name, f"is not for direction `{self.direction}`")
        if self.next_sentences:
            raise ValueError(
                f"direction `{self.direction}` is trained without next sentences: give --no-next-sentences"
            )

    def shape(self, tokenizer: Tokenizer) -> EncoderConfig:
        """Return the shape of new weights."""
        shape = super().shape(tokenizer)
        return shape if self.direction == "both" else with_changes(shape, {"direction": self.direction})

    def examples(self, corpus: Corpus, **settings: Any) -> PretrainingExamples:
        """Return the examples of a corpus."""
        if self.direction == "both":
            return super().examples(corpus, **settings)
        return NextTokenExamples(corpus, self.direction, **settings)


class NextTokenExamples(PretrainingExamples):
    """Examples of a language model: each token predicts the next one; from right to left, the one before."""

    def __init__(self, corpus: Corpus, direction: Direction, **settings: Any) -> None:
        super().__init__(corpus, next_sentences=False, **settings)
        self.masking = Masking(mask_fraction=1.0, random_fraction=0.0)  # the predicted token is not seen
        self._directions = ("left-to-right", "right-to-left") if direction == "concatenated" else (direction,)

    @property
    def max_predictions(self) -> int:
        """Largest number of predictions of an example."""
        return (self.max_seq_length - 1) * len(self._directions)

    @property
    def states_per_row(self) -> int:
        """Number of states that positions of predictions count in a row of a batch."""
        return self.max_seq_length * len(self._directions)

    def predictions(
        self,
        input_ids: np.ndarray,
        special_positions: np.ndarray,
        continues_word: np.ndarray | None,
        rng: np.random.Generator,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the ids, the states that predict, as `recipes.ablations.model` counts them, and their labels."""
        last = len(input_ids) - 1
        reads = [np.arange(last) if name == "left-to-right" else np.arange(1, last + 1) for name in self._directions]
        labels = [input_ids[1:] if name == "left-to-right" else input_ids[:-1] for name in self._directions]
        states = np.concatenate([len(reads) * tokens + number for number, tokens in enumerate(reads)])
        order = np.argsort(states)
        return input_ids, states[order], np.concatenate(labels)[order]


def pretrain_ablation(recipe: AblationPretrainRecipe, world: World) -> Path:
    """Pretrain, or resume, and return the checkpoint."""
    checkpoint = pretrain(recipe, world)
    if recipe.direction != "both" and world.is_main:
        (checkpoint / CARD_FILE).unlink(missing_ok=True)  # it describes a masked LM
    return checkpoint


@command
def main() -> None:
    """Command line."""
    recipe = parse(AblationPretrainRecipe, "recipes.ablations.pretrain", __doc__)
    register()
    with world() as peers:
        checkpoint = pretrain_ablation(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
