"""Closing of connections, by the names that gRPC gives their peers: gRPC lets Python end calls, but no connection."""

from __future__ import annotations

import logging
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

logger = logging.getLogger(__name__)

_FILES = Path("/proc/self/fd")


def close_connections(reasons: Mapping[str, str]) -> None:
    """Shut the connections to some peers, whose calls then end, and log why; on Linux only. The search takes some
    microseconds for each open file: it is for a thread.

    Args:
        reasons: by peer, as `ServicerContext.peer` has it: `ipv4:127.0.0.1:12345`, `ipv6:%5B::1%5D:12345`.
    """
    reasons = {unquote(peer): reason for peer, reason in reasons.items()}
    for number in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if reason := reasons.get(peer := _name(connection)):
                connection.shutdown(socket.SHUT_RDWR)
                logger.warning("closed the connection of %s: %s", peer, reason)


def _sockets() -> list[int]:
    """Return the file descriptors of sockets: `socket.socket` refuses others, and their copies would stay open."""
    found: list[int] = []
    with suppress(OSError):  # not Linux, or as many files are open as may be
        for item in _FILES.iterdir():
            with suppress(OSError):  # closed meanwhile
                if stat.S_ISSOCK(os.fstat(number := int(item.name)).st_mode):
                    found.append(number)
    return found


def _name(connection: socket.socket) -> str:
    if connection.type != socket.SOCK_STREAM or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return ""
    host, port = connection.getpeername()[:2]
    host = host.removeprefix("::ffff:") if "." in host else host  # where the socket listens for IPv4 and IPv6
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
