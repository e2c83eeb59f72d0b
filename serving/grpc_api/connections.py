"""Closing of connections by their names: the Python API of gRPC can end calls, but not connections."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from serving.core.calls import connection_name

logger = logging.getLogger(__name__)

_FILES = Path("/proc/self/fd")


def close_connections(reasons: Mapping[str, str]) -> None:
    """Close the connections to some peers, which ends their calls, and log the reasons. Does nothing except on Linux.

    Takes some microseconds for each open file: call it in a thread.

    Args:
        reasons: connection, named as by `connection_name` -> reason.
    """
    for number in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if reason := reasons.get(peer := _name(connection)):
                connection.shutdown(socket.SHUT_RDWR)
                logger.warning("closed the connection of %s: %s", peer, reason)


def _sockets() -> list[int]:
    """Return the file descriptors of sockets: `socket.socket` fails for others, and their copies would stay open."""
    found: list[int] = []
    with suppress(OSError):  # not Linux, or too many open files
        for item in _FILES.iterdir():
            with suppress(OSError):  # closed in the meantime
                if stat.S_ISSOCK(os.fstat(number := int(item.name)).st_mode):
                    found.append(number)
    return found


def _name(connection: socket.socket) -> str:
    if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    return connection_name(*connection.getpeername()[:2])
