"""Inputs of `bertline bench`: built-in sentences or a file, serialised once as calls."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bertline._convert import Split
from bertline.jobs.rows import text_bytes
from bertline.jobs.sources import STANDARD_INPUT, Format, source_of
from bertline.jobs.storage import FileError, find_files
from bertline.operations import OPERATIONS
from bertline.v1 import encoder_pb2 as pb

MAX_INPUTS, MAX_BYTES = 100_000, 64 << 20
"""Maximum number of inputs and bytes to read from a file. The rest is not sent."""
_MIN_CALLS = 64
"""Minimum number of different calls. Few inputs are repeated in other combinations."""
_TEXTS = Path(__file__).with_name("texts.txt")
"""Built-in queries, sentences and paragraphs of 2 to 130 words, in that order."""
_OPERATIONS = {operation.task: operation for operation in OPERATIONS.values()}


def read_inputs(task: str, path: str | None, chosen: Format | None = None) -> list[Any]:
    """Return inputs for a task's RPC.

    Args:
        task: task of the model.
        path: file of texts, or of rows with the columns of the task, or a pattern of files; `-` for standard input,
            None for the built-in texts. Empty lines are skipped.
        chosen: format of the file; None to infer it from the name.

    Raises:
        FileError: if the file cannot be read, or has no input or an invalid one.
        ValueError: if the task is unknown.
    """
    if task not in _OPERATIONS:
        raise ValueError(f"this client does not know task `{task}`; update it")
    operation = _OPERATIONS[task]
    files = [STANDARD_INPUT] if path == "-" else find_files([path or str(_TEXTS)])
    sources = [source_of(file, chosen if path else None, skip_empty=True) for file in files]
    columns = operation.columns({})
    rows = ((source, row) for source in sources for read in source.read(columns, []) for row in read.rows)
    inputs: list[Any] = []
    num_bytes = 0
    for source, row in rows:
        try:
            if row.reason:
                raise ValueError(row.reason)
            is_text = source.format is Format.text
            inputs.append(operation.of_text(row.fields["text"]) if is_text else operation.read(row.fields, {}))
        except ValueError as error:
            raise FileError(f"{source.name}, {row.place}: {error}") from error
        num_bytes += text_bytes(inputs[-1])
        if len(inputs) == MAX_INPUTS or num_bytes > MAX_BYTES:
            break
    if not inputs:
        raise FileError(f"{sources[0].name} has no inputs; give a file with one text per line")
    return inputs


@dataclass(frozen=True)
class Calls:
    """Serialised requests of an RPC, to send one after the other."""

    method: str
    """Name of the RPC."""
    bodies: Sequence[bytes]
    batch_size: int
    """Number of inputs in each."""

    @property
    def path(self) -> str:
        """Path of the RPC."""
        return f"/{pb.DESCRIPTOR.package}.Encoder/{self.method}"

    @property
    def reply_class(self) -> Any:
        """Message of the reply."""
        return getattr(pb, f"{self.method}Reply")


def make_calls(
    task: str, inputs: Sequence[Any], batch_size: int, model: str = "", version: str = "", truncate: bool = True
) -> Calls:
    """Make the calls to send, each with `batch_size` inputs.

    Inputs are taken in order; after the last one, the first one follows again. All occur equally often, except that
    the first ones may occur once more to fill the last call.
    """
    num_rounds = min(batch_size // math.gcd(len(inputs), batch_size), -(-_MIN_CALLS * batch_size // len(inputs)))
    num_calls = -(-num_rounds * len(inputs) // batch_size)
    items, options = cycle(inputs), {"model": model, "version": version, "truncate": truncate}
    calls = [_OPERATIONS[task].call(list(islice(items, batch_size)), **options) for _ in range(num_calls)]
    return Calls(
        calls[0].method, [Split.merged([call.requests]).message.SerializeToString() for call in calls], batch_size
    )
