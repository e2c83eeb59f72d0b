"""Result of a finished run: curves and checkpoint."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from tasks.text.tokenizer import Tokenizer
from training.checkpoint.task_card import TaskCard
from training.checkpoint.writer import config_values, save_checkpoint
from training.loop.run_directory import RunDirectory
from training.model.heads import BertModel
from training.reports.model_card import model_card
from training.reports.usages import MASK


def write_result(run: RunDirectory, model: BertModel, *, tokenizer_from: Path, card: TaskCard) -> None:
    """Write the curves, then the checkpoint, which marks the run as finished; remove the resumable states."""
    from training.reports.plot import plot_run  # matplotlib takes half a second: not before the end of a run

    plot_run(run.path)
    readme = describe_checkpoint(model, tokenizer_from=tokenizer_from, card=card)
    save_checkpoint(run.checkpoint_path, model.cpu(), tokenizer_from=tokenizer_from, card=card, readme=readme)
    run.drop_states()


def describe_checkpoint(model: BertModel, *, tokenizer_from: Path, card: TaskCard) -> str:
    """Return the text of a checkpoint's README.md."""
    return model_card(
        card,
        {**asdict(model.config), **config_values(model, card.settings)},
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        mask=Tokenizer.load(tokenizer_from).mask_token or MASK,
    )
