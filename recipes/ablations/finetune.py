"""Fine-tune a head over several hidden states of BERT, or over a BiLSTM on them (section 5.3 of the paper).

    python -m recipes.ablations.finetune tagging --frozen --layers -1 -2 -3 -4 --bilstm 768 \\
        --checkpoint runs/mini/checkpoint --train a.conll --dev b.conll --run-dir a
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from recipes.ablations.model import Combination, register, with_changes
from training.command_line.bounds import NOT_NEGATIVE
from training.command_line.command import command, parse
from training.finetuning.recipe import FinetuneRecipe
from training.finetuning.run import finetune
from training.loop.distributed import world
from training.model.config import EncoderConfig


@dataclass(frozen=True, kw_only=True)
class AblationFinetuneRecipe(FinetuneRecipe):
    """Fine-tune BERT, or a network that differs from it in what the head reads."""

    layers: tuple[int, ...] | None = None
    """Layers whose hidden states the head reads: 0 for the embeddings, 1 for the first layer, -1 for the last. None for
    those of the checkpoint; in BERT the last."""
    combine: Combination | None = None
    """Combination of several layers: concatenated, added, or averaged with learned weights."""
    bilstm: Annotated[int, NOT_NEGATIVE] | None = None
    """Size of each direction of a BiLSTM of two layers below the head (the paper: 768); 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.take_layers and (self.layers or self.combine):
            raise ValueError("--take-layers makes a smaller encoder: leave out --layers and --combine")

    def shape(self) -> EncoderConfig:
        """Return the shape of the network: that of the checkpoint with the layers of this recipe."""
        given = {"state_layers": self.layers, "state_combination": self.combine, "bilstm_size": self.bilstm}
        changes = {name: value for name, value in given.items() if value is not None}
        shape = with_changes(super().shape(), changes) if changes else super().shape()
        if self.combine and len(getattr(shape, "state_layers", (-1,))) == 1:
            raise ValueError(f"--combine {self.combine} needs several --layers, such as -1 -2 -3 -4")
        return shape


@command
def main() -> None:
    """Command line."""
    recipe = parse(AblationFinetuneRecipe, "recipes.ablations.finetune", __doc__)
    register()
    with world() as peers:
        checkpoint = finetune(recipe, peers)
        if peers.is_main:
            print(f"checkpoint -> {checkpoint}")


if __name__ == "__main__":
    main()
