"""State notifications for systemd and other supervisors that speak sd_notify."""

from __future__ import annotations

import logging
import os
import socket

logger = logging.getLogger(__name__)

TIMEOUT_S = 1.0
"""Maximum seconds to wait while the supervisor's socket is full."""


def notify(state: str) -> None:
    """Send a state such as `READY=1` to the socket in NOTIFY_SOCKET; do nothing if that is unset."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(TIMEOUT_S)
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address.startswith("@") else address)
        except OSError as error:
            logger.warning("cannot send %s to NOTIFY_SOCKET `%s`: %s", state, address, error.strerror or error)
