"""Scalars for TensorBoard, written immediately. TensorBoard's own writer has a thread, whose errors are lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from tasks.bundle.files import name_in_errors


class Events:
    """File of events.

    Args:
        directory: TensorBoard's log directory.
        step: last step before a resume; TensorBoard ignores later steps in other files.
    """

    def __init__(self, directory: Path, step: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"events.out.tfevents.{time.time_ns()}"
        self._file = open(self._path, "wb")  # noqa: SIM115
        self._records = RecordWriter(self._file)
        self._write(step=step + 1, file_version="brain.Event:2")
        self._write(step=step + 1, session_log=SessionLog(status=SessionLog.START))

    def add(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write the scalars of a step."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(step=step, summary=Summary(value=values))

    def _write(self, **fields: Any) -> None:
        with name_in_errors(self._path):
            self._records.write(Event(wall_time=time.time(), **fields).SerializeToString())
            self._records.flush()

    def close(self) -> None:
        """Close the file."""
        with name_in_errors(self._path):
            self._file.close()
