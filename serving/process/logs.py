"""Log formats: text for people, JSON for collectors. Pass the fields of a line as `extra={"fields": {...}}`."""

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
    """Formatter of `time LEVEL logger: message key=value ...`; one line except for tracebacks."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line with its fields after the message."""
        pairs = [f" {name}={_quote(value)}" for name, value in getattr(record, "fields", {}).items()]
        return super().formatMessage(record) + "".join(pairs)


class JsonFormatter(logging.Formatter):
    """Formatter of one JSON object a line: time (UTC), level, logger, message, the fields, `error` (traceback)."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
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


def format_dropped(count: int, formatter: logging.Formatter | None = None) -> str:
    """Return a log line with the number of lines that were dropped."""
    message, fields = "dropped lines that could not be written", {"fields": {"dropped": count}}
    record = logger.makeRecord(logger.name, logging.WARNING, "", 0, message, (), None, extra=fields)
    return (formatter or TextFormatter()).format(record) + "\n"


class LineLimit:
    """Limit of log lines a second; the first line of a new second reports how many were omitted."""

    def __init__(self, max_per_s: int) -> None:
        self._max_per_s = max_per_s
        self._second = 0
        self._num_lines = 0

    def omitted(self) -> int | None:
        """Count a line; return the number of lines omitted before it, or None if this line must be omitted too."""
        second, omitted = int(time.monotonic()), 0
        if second != self._second:
            omitted = max(0, self._num_lines - self._max_per_s)
            self._second, self._num_lines = second, 0
        self._num_lines += 1
        return omitted if self._num_lines <= self._max_per_s else None


class GrpcLogFilter(logging.Filter):
    """Filter for the log of grpcio, which writes a traceback for each malformed call: at most one line a second.

    Drops `ExecuteBatchError`: it only means that a client left before its reply was sent.
    """

    def __init__(self) -> None:
        super().__init__()
        self._limit = LineLimit(1)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to write a record."""
        if "ExecuteBatchError" in record.getMessage() or (omitted := self._limit.omitted()) is None:
            return False
        if omitted:
            record.fields = {"omitted": omitted}
        return True


FORMATTERS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def configure(log_format: str, level: str, process: int | None = None) -> None:
    """Send all logs to stderr.

    Args:
        log_format: one of FORMATTERS.
        level: `debug`, `info`, `warning` or `error`.
        process: number of this process, as a field of its lines; None for none.
    """

    def add_process(record: logging.LogRecord) -> bool:
        record.fields = {**getattr(record, "fields", {}), "process": process}
        return True

    handler, formatter = logging.StreamHandler(sys.stderr), FORMATTERS[log_format]()
    handler.setFormatter(formatter)
    if process is not None:
        handler.addFilter(add_process)
    streams.format_dropped_with(partial(format_dropped, formatter=formatter))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _quote(value: Any) -> str:
    """Quote a value unless it is plain: a value that a caller sends must not look like further fields or lines."""
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') and text else json.dumps(text)
