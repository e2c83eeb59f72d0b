"""Log lines: for people, or JSON for collectors. Fields of a line come in `extra={"fields": {...}}`."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from functools import partial
from typing import Any

from serving.process import streams

logger = logging.getLogger(__name__)


class TextFormatter(logging.Formatter):
    """`time LEVEL logger: message key=value ...`, one line but for tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line, with its fields after the message."""
        pairs = [f" {name}={_plain(value)}" for name, value in getattr(record, "fields", {}).items()]
        return super().formatMessage(record) + "".join(pairs)


class JsonFormatter(logging.Formatter):
    """One object a line: time (UTC), level, logger, message, the line's fields, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def dropped(count: int, formatter: logging.Formatter | None = None) -> str:
    """The line that says how many lines could not be written."""
    message, fields = "lines that could not be written were dropped", {"fields": {"dropped": count}}
    record = logger.makeRecord(logger.name, logging.WARNING, "", 0, message, (), None, extra=fields)
    return (formatter or TextFormatter()).format(record) + "\n"


class LineLimit:
    """Limit of lines a second; the first line of another second says how many were left out before it."""

    def __init__(self, max_per_s: int) -> None:
        self._max_per_s = max_per_s
        self._second = 0
        self._num_lines = 0

    def omitted(self) -> int | None:
        """Count a line; returns how many were left out before it, or None where it has to be left out, too."""
        second, omitted = int(time.monotonic()), 0
        if second != self._second:
            omitted = max(0, self._num_lines - self._max_per_s)
            self._second, self._num_lines = second, 0
        self._num_lines += 1
        return omitted if self._num_lines <= self._max_per_s else None


class OfGrpc(logging.Filter):
    """Filter for the log of gRPC's own code, which writes a traceback for each odd call: one line a second at most.

    `ExecuteBatchError` is dropped: it is no error when a client leaves before its reply is sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limit = LineLimit(1)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        if "ExecuteBatchError" in record.getMessage() or (omitted := self._limit.omitted()) is None:
            return False
        if omitted:
            record.fields = {"omitted": omitted}
        return True


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def configure(log_format: str, level: str) -> None:
    """Send all logs to stderr.

    Args:
        log_format: one of FORMATTERS.
        level: `debug`, `info`, `warning` or `error`.
    """
    handler, formatter = logging.StreamHandler(sys.stderr), FORMATTERS[log_format]()
    handler.setFormatter(formatter)
    streams.tell_dropped_with(partial(dropped, formatter=formatter))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _plain(value: Any) -> str:
    """As it is where that is unambiguous, else quoted: what a caller sends cannot make up fields or lines."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') and text else json.dumps(text)
