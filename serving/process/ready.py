"""Announcement that the server takes calls: a line on standard output, JSON for its parent, states for supervisors."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from serving.process.logs import FORMATTERS, JsonFormatter
from serving.process.streams import write_all

logger = logging.getLogger("serving")

NOTIFY_S = 1.0
"""Maximum seconds to wait while the socket of the supervisor is full."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Addresses and models of a server that takes calls."""

    target: str
    """Address for clients, `host:port`."""
    port: int
    metrics_url: str
    metrics_port: int
    http_url: str
    """Address of the HTTP API; empty without one."""
    tls: bool
    models: Sequence[str]
    """Names of the loaded models."""

    def __str__(self) -> str:
        count = len(self.models)
        http = f", HTTP API and playground on {self.http_url}/" if self.http_url else ""
        return f"serving {count} model{'s' * (count != 1)} on {self.target}{http}, metrics on {self.metrics_url}"


def announce(ready: Ready, log_format: str, ready_fd: int | None) -> None:
    """Print the ready line, and write it as JSON to a file descriptor.

    Args:
        ready: addresses and models.
        log_format: `text` for plain text; `json` for the fields of log lines, `event`, and the fields of `ready`.
        ready_fd: file descriptor that gets one JSON line and is closed; None for none.
    """
    fields = {"event": "ready", **asdict(ready)}
    record = logger.makeRecord(logger.name, logging.INFO, "", 0, str(ready), (), None, extra={"fields": fields})
    line = JsonFormatter().format(record)
    print(ready if FORMATTERS[log_format] is not JsonFormatter else line, flush=True)
    if ready_fd is not None:  # in a thread, since a parent that does not read may block it
        threading.Thread(target=_write, args=(ready_fd, f"{line}\n".encode()), name="ready", daemon=True).start()


def _write(fd: int, data: bytes) -> None:
    try:
        write_all(fd, data)
    except OSError as error:
        logger.warning("cannot write to --ready-fd `%d`: %s", fd, error.strerror)
    finally:
        os.close(fd)


def notify(state: str) -> None:
    """Send a state such as `READY=1` to a supervisor that speaks sd_notify; do nothing if NOTIFY_SOCKET is unset."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(NOTIFY_S)
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            logger.warning("cannot send %s to NOTIFY_SOCKET `%s`: %s", state, address, error.strerror or error)
