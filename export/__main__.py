"""Export a checkpoint to a model directory that the server reads.

    python -m export runs/sst2/checkpoint models/sst2/1
    python -m export bge-small models/bge/1 --precision int8 --texts sentences.txt

CHECKPOINT is any BERT in Hugging Face's layout. The graph is compared with PyTorch, and refused when unfaithful.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from export.parity import Limits
from export.pipeline import export_checkpoint
from export.source import SettingsChanges, TaskName
from tasks.manifest import Precision
from training.command import command, parse


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Command line of `python -m export`."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """Directory with config.json, weights and tokenizer."""
    model_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_DIR")]
    """`models/<name>/<version>`, to be written."""
    task: TaskName | None = None
    """What to export it for. Unset: what it was trained for; `embedding` works with every checkpoint."""
    precision: Precision = "fp32"
    """int8 is faster and smaller, at some loss that is measured."""
    texts: Path | None = None
    """Text file, one text a line, to compare graph and PyTorch on. Unset: random ids."""
    replace: bool = False
    """Overwrite an existing model directory."""
    limits: tyro.conf.OmitArgPrefixes[Limits] = field(default_factory=Limits)
    settings: tyro.conf.OmitArgPrefixes[SettingsChanges] = field(default_factory=SettingsChanges)


def read_texts(path: Path) -> list[str]:
    """The lines of a text file, without empty ones.

    Raises:
        ValueError: when there are none, or the file is not UTF-8.
    """
    try:
        texts = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: `{path}` ({error.reason} at byte {error.start})") from error
    if not texts:
        raise ValueError(f"no texts in `{path}`")
    return texts


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "export", __doc__)
    exported = export_checkpoint(
        arguments.checkpoint,
        arguments.model_dir,
        precision=arguments.precision,
        task=arguments.task,
        settings=arguments.settings,
        texts=read_texts(arguments.texts) if arguments.texts else (),
        limits=arguments.limits,
        replace=arguments.replace,
        progress=print,
    )
    print(f"model directory -> {exported.path}")


if __name__ == "__main__":
    main()
