"""Connections, by the names that gRPC gives their peers: gRPC itself lets Python end calls, and no connection."""

from __future__ import annotations

import logging
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

logger = logging.getLogger(__name__)

_FILES = Path("/proc/self/fd")


def close_connection(peer: str, reason: str) -> bool:
    """Shut the connection to a peer, whose calls then end, and log why; on Linux only.

    Args:
        peer: as `ServicerContext.peer` has it: `ipv4:127.0.0.1:12345`, `ipv6:%5B::1%5D:12345`.

    Returns:
        Whether there was one.
    """
    for number in _sockets():
        with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
            if _name(connection) == unquote(peer):
                connection.shutdown(socket.SHUT_RDWR)
                logger.warning("closed the connection of %s: %s", unquote(peer), reason)
                return True
    return False


def _sockets() -> list[int]:
    """File descriptors of sockets: of others, a copy that was made for `socket.socket` would stay open."""
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
    host = host.removeprefix("::ffff:") if "." in host else host  # of a socket that listens for both
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
