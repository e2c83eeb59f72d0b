"""Limits of open files: how many the process may have, and how many of those connections may take."""

from __future__ import annotations

import logging
import resource

WANTED = 65_536
ENOUGH = 1024
"""What most systems allow by default."""
RESERVED = 128
"""Files that the server itself opens: its libraries, models that are loaded, files that are read again, scrapes."""
MAX_SCRAPES = 16

logger = logging.getLogger(__name__)


def limit() -> int:
    """Return how many files the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the limit of open files as far as the process may, up to `WANTED`; warn where that is not enough."""
    soft, (_, hard) = limit(), resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        logger.info("raised the limit of open files from %d to %d", soft, wanted)
    if (allowed := limit()) < ENOUGH:
        logger.warning(
            "the process may have %d files open, hence take %d connections; more are closed as they come. Raise the "
            "limit: `ulimit -n`, LimitNOFILE= of systemd, --ulimit of docker",
            allowed,
            max_connections(allowed),
        )


def max_connections(allowed: int) -> int:
    """Return how many connections a server may take; more would leave it no descriptors for itself."""
    return max(1, allowed - RESERVED, allowed * 3 // 8)


def max_scrapes(allowed: int) -> int:
    """Return how many connections to /metrics a server may take, each of which has a thread."""
    return max(1, min(MAX_SCRAPES, allowed // 8))
