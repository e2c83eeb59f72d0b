"""Tells systemd, or whatever else speaks sd_notify, how far the server is."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""Seconds that systemd may take to make room for a message."""


def notify(state: str) -> None:
    """Send a state such as `READY=1` to the socket that NOTIFY_SOCKET names; nothing where it is unset."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(TIMEOUT_S)
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            logger.warning("nobody was told %s at NOTIFY_SOCKET `%s`: %s", state, address, error.strerror or error)
