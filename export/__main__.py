"""Export a checkpoint to a model directory for the server.

    python -m export runs/sst2/checkpoint models/sst2/1
    python -m export intfloat/e5-small-v2 models/e5/1 --precision int8 --texts texts-like-yours.txt
    python -m export tune models/bge/1    # autotune again, on the machine that will serve it

CHECKPOINT is an encoder in Hugging Face's layout, of a family in docs/reference/encoders.md: a directory, or a
repository of the Hugging Face hub. Optimum exports other families. The graph is compared with PyTorch, and rejected if
it differs.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from export.autotune.model_directory import check_tunable, tune_model_directory
from export.engines import EngineName
from export.evaluation_set import ExportData
from export.html_report import describe_result
from export.package import check_destination, graph_bytes
from export.pipeline import ExportConfig, export_checkpoint
from export.reporter import Reporter
from export.source import SettingsChanges
from tasks.bundle.model_directory import read_model_directory
from tasks.registry import TaskName
from training.checkpoint.hub import parse_hub_name, resolve_checkpoint
from training.checkpoint.sentence_transformers import checkpoint_directory
from training.checkpoint.task_card import read_task_card
from training.command_line.command import command, parse
from training.data.columns import Columns, dev_columns, existing_columns


@dataclass(frozen=True, kw_only=True)
class ExportArguments:
    """Command line of `python -m export`."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """Directory with config.json, weights and tokenizer, or a repository of the Hugging Face hub: org/name or
    org/name@revision."""
    model_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_DIR")]
    """Model directory to write, `models/<name>/<version>`."""
    revision: str | None = None
    """Branch, tag or commit of a repository of the hub. Default: `main`."""
    task: TaskName | None = None
    """Task to export for. Default: the task of the checkpoint's training; `embedding` works with every checkpoint."""
    replace: bool = False
    """Overwrite an existing model directory."""
    config: Annotated[tyro.conf.OmitArgPrefixes[ExportConfig], tyro.conf.arg(name="")] = field(
        default_factory=ExportConfig
    )
    data: tyro.conf.OmitArgPrefixes[ExportData] = field(default_factory=ExportData)
    columns: Columns = field(default_factory=Columns)
    """Columns of dev, train and texts. Default: those of the checkpoint's training for the task, if dev has them."""
    settings: tyro.conf.OmitArgPrefixes[SettingsChanges] = field(default_factory=SettingsChanges)


@dataclass(frozen=True, kw_only=True)
class TuneArguments:
    """Command line of `python -m export tune`."""

    model_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_DIR")]
    """Model directory to tune. Leave the machine idle while it is timed."""
    engine: EngineName = "auto"
    """Engine to serve with on CPUs. `auto` takes the fastest of those that are installed."""
    texts: Path | None = None
    """Typical texts, one a line, or a table; only their lengths matter. Default: 25 tokens each."""
    columns: Columns = field(default_factory=Columns)
    """Columns of texts."""


TUNE = """Find the fastest configuration of a model directory, on the machine that will serve it.

    python -m export tune models/sst2/1
"""


def tune_command(arguments: TuneArguments) -> None:
    """Autotune a model directory and print the trials."""
    directory = read_model_directory(arguments.model_dir)
    check_tunable(directory.manifest, arguments.engine)
    task, data = directory.load_task(), ExportData(texts=arguments.texts, columns=arguments.columns)
    workload = data.workload(task, data.evaluation_set(task))
    tune_model_directory(arguments.model_dir, workload, engine=arguments.engine, reporter=_reporter())
    print(f"model directory -> {arguments.model_dir}")


def _reporter() -> Reporter:
    return Reporter(print, bars=sys.stderr.isatty())


def parse_arguments(module: str = "export") -> ExportArguments:
    """Parse the command line and find the checkpoint; the columns default to those of the checkpoint's training."""
    read = partial(parse, ExportArguments, module, _description(__doc__, module))
    arguments = read()
    if parse_hub_name(arguments.checkpoint, arguments.revision):  # before a download that may take minutes
        check_destination(arguments.model_dir, arguments.checkpoint, arguments.data.files, replace=arguments.replace)
    checkpoint = resolve_checkpoint(arguments.checkpoint, arguments.revision)
    card = read_task_card(checkpoint_directory(checkpoint))
    labelled = arguments.data.dev or arguments.data.train
    if card and labelled and arguments.task in (None, card.task):
        columns = existing_columns(labelled, dev_columns(card.provenance.get("recipe", {})))
        arguments = read(default=replace(arguments, columns=columns))
    return replace(arguments, checkpoint=checkpoint)


def _description(text: str | None, module: str) -> str:
    return (text or "").replace("python -m export", f"python -m {module}")


@command
def main() -> None:
    """Command line."""
    run_command("export")


def run_command(module: str) -> None:
    """Export or autotune, as the command line requests.

    Args:
        module: name of the module that was called, for --help.
    """
    if sys.argv[1:2] == ["tune"]:
        tune_command(parse(TuneArguments, f"{module} tune", _description(TUNE, module), sys.argv[2:]))
        return
    arguments = parse_arguments(module)
    directory = export_checkpoint(
        arguments.checkpoint,
        arguments.model_dir,
        arguments.config,
        task=arguments.task,
        settings=arguments.settings,
        data=replace(arguments.data, columns=arguments.columns),
        replace=arguments.replace,
        reporter=_reporter(),
    )
    result = describe_result(directory.manifest, graph_bytes(directory.path, directory.manifest))
    print(f"model directory -> {arguments.model_dir}: {result}")


if __name__ == "__main__":
    main()
