"""Export a checkpoint to a model directory that the server reads.

    python -m export runs/sst2/checkpoint models/sst2/1
    python -m export bge-small models/bge/1 --precision int8 --texts sentences.txt

CHECKPOINT is any BERT in Hugging Face's layout. The graph is compared with PyTorch, and refused when unfaithful.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import tyro

from export.data import Data
from export.pipeline import Wishes, export_checkpoint
from export.retune import retune
from export.source import SettingsChanges, TaskName
from export.stages import Stages
from tasks.manifest import read_model_directory
from training.command import command, parse
from training.data.labelled import Columns


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
    wishes: tyro.conf.OmitArgPrefixes[Wishes] = field(default_factory=Wishes)
    data: tyro.conf.OmitArgPrefixes[Data] = field(default_factory=Data)
    columns: Columns = field(default_factory=Columns)
    """Of dev, train and texts. Those of training come with their files."""
    settings: tyro.conf.OmitArgPrefixes[SettingsChanges] = field(default_factory=SettingsChanges)


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Command line of `python -m export tune`."""

    model_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_DIR")]
    """What an export wrote; nothing else may be using it."""
    texts: Path | None = None
    """Texts like those to come, one a line: their lengths count. Unset: lengths as sentences have them."""


TUNE = """Choose anew how a model directory is run, on the machine that will serve it.

    python -m export tune models/sst2/1
"""


def tune_command(arguments: TuneArguments) -> None:
    """Choose and say what was tried."""
    task = read_model_directory(arguments.model_dir).load_task()
    data = Data(texts=arguments.texts)
    retune(arguments.model_dir, data.workload(task, data.evidence(task)), stages=_stages())
    print(f"model directory -> {arguments.model_dir}")


def _stages() -> Stages:
    return Stages(print, bars=sys.stderr.isatty())


@command
def main() -> None:
    """Command line."""
    if sys.argv[1:2] == ["tune"]:
        tune_command(parse(TuneArguments, "export tune", TUNE, sys.argv[2:]))
        return
    arguments = parse(Arguments, "export", __doc__)
    exported = export_checkpoint(
        arguments.checkpoint,
        arguments.model_dir,
        arguments.wishes,
        task=arguments.task,
        settings=arguments.settings,
        data=replace(arguments.data, columns=arguments.columns),
        replace=arguments.replace,
        stages=_stages(),
    )
    print(f"model directory -> {exported.path}")


if __name__ == "__main__":
    main()
