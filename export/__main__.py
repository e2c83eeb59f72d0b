"""Export a checkpoint to a model directory that the server reads.

    python -m export runs/sst2/checkpoint models/sst2/1
    python -m export bge-small models/bge/1 --precision int8 --texts texts-like-those-to-come.txt
    python -m export tune models/bge/1    # another command: chooses anew, on the machine that will serve it

CHECKPOINT is any BERT in Hugging Face's layout. The graph is compared with PyTorch, and refused when unfaithful.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from export.autotune.model_directory import check_tunable, retune
from export.data import Data
from export.html_report import outcome_in_words
from export.package import graph_bytes
from export.pipeline import Wishes, export_checkpoint
from export.reporter import Stages
from export.sentence_transformers import checkpoint_directory
from export.source import SettingsChanges, TaskName
from tasks.model_directory import read_model_directory
from training.command import command, parse
from training.data.columns import Columns, dev_columns, existing_columns
from training.task_card import read_task_card


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Command line of `python -m export`."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """Directory with config.json, weights and tokenizer."""
    model_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_DIR")]
    """`models/<name>/<version>`, to be written."""
    task: TaskName | None = None
    """What to export it for. Unset: what it was trained for; `embedding` works with every checkpoint."""
    replace: bool = False
    """Overwrite an existing model directory."""
    wishes: Annotated[tyro.conf.OmitArgPrefixes[Wishes], tyro.conf.arg(name="")] = field(default_factory=Wishes)
    data: tyro.conf.OmitArgPrefixes[Data] = field(default_factory=Data)
    columns: Columns = field(default_factory=Columns)
    """Of dev, train and texts. What is not given is as it was in training for the task, if dev has that."""
    settings: tyro.conf.OmitArgPrefixes[SettingsChanges] = field(default_factory=SettingsChanges)


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Command line of `python -m export tune`."""

    model_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_DIR")]
    """What an export wrote; nothing else may be using it."""
    texts: Path | None = None
    """Texts like those to come, one a line, or a table: their lengths count. Unset: lengths as sentences have them."""
    columns: Columns = field(default_factory=Columns)
    """Of texts."""


TUNE = """Choose anew how a model directory is run, on the machine that will serve it.

    python -m export tune models/sst2/1
"""


def tune_command(arguments: TuneArguments) -> None:
    """Choose and say what was tried."""
    directory = read_model_directory(arguments.model_dir)
    check_tunable(directory.manifest.execution)
    task, data = directory.load_task(), Data(texts=arguments.texts, columns=arguments.columns)
    retune(arguments.model_dir, data.workload(task, data.evidence(task)), stages=_stages())
    print(f"model directory -> {arguments.model_dir}")


def _stages() -> Stages:
    return Stages(print, bars=sys.stderr.isatty())


def arguments_of_command() -> Arguments:
    """What is asked for, over the columns that the checkpoint's own data had."""
    read = partial(parse, Arguments, "export", __doc__)
    found = read()
    card, labelled = read_task_card(checkpoint_directory(found.checkpoint)), found.data.dev or found.data.train
    if not card or not labelled or found.task not in (None, card.task):
        return found
    known = dev_columns(card.provenance.get("recipe", {}))
    return read(default=replace(found, columns=existing_columns(labelled, known)))


@command
def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["tune"]:
        tune_command(parse(TuneArguments, "export tune", TUNE, sys.argv[2:]))
        return
    arguments = arguments_of_command()
    made = export_checkpoint(
        arguments.checkpoint,
        arguments.model_dir,
        arguments.wishes,
        task=arguments.task,
        settings=arguments.settings,
        data=replace(arguments.data, columns=arguments.columns),
        replace=arguments.replace,
        stages=_stages(),
    )
    outcome = outcome_in_words(made.manifest, graph_bytes(made.path))
    print(f"model directory -> {arguments.model_dir}: {outcome}")


if __name__ == "__main__":
    main()
