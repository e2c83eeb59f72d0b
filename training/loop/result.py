"""Result of a finished run: curves and checkpoint."""

from __future__ import annotations

from pathlib import Path

from training.checkpoint_writer import save_checkpoint
from training.loop.run_directory import RunDirectory
from training.model.heads import BertModel
from training.task_card import TaskCard


def write_result(run: RunDirectory, model: BertModel, *, tokenizer_from: Path, card: TaskCard) -> None:
    """Write the curves, then the checkpoint, which marks the run as finished; remove the resumable states."""
    from training.reports.plot import plot_run  # matplotlib takes half a second: not before the end of a run

    plot_run(run.path)
    save_checkpoint(run.checkpoint_path, model.cpu(), tokenizer_from=tokenizer_from, card=card)
    run.drop_states()
