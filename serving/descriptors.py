"""How many files and connections the process may have open, and what of that connections may take."""

from __future__ import annotations

import logging
import resource

WANTED = 65_536
ENOUGH = 1024
"""What most systems allow by default."""
RESERVED = 128
"""For what the server itself opens: its libraries, models that are loaded, files that are read again, scrapes."""
MAX_SCRAPES = 16

logger = logging.getLogger(__name__)


def limit() -> int:
    """How many the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return WANTED if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Take as many as the process may give itself, up to `WANTED`; say so where that is not enough."""
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
    """How many connections a server may take: the others would leave no descriptors for itself."""
    return max(1, allowed - RESERVED, allowed * 3 // 8)


def max_scrapes(allowed: int) -> int:
    """How many connections to /metrics it may take, each of which has a thread."""
    return max(1, min(MAX_SCRAPES, allowed // 8))
