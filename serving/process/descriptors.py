"""Limits of open files: of the process, and of its connections."""

from __future__ import annotations

import logging
import resource

TARGET_LIMIT = 65_536
MIN_LIMIT = 1024
"""Default limit of most systems."""
RESERVED_FILES = 128
"""Open files of the server itself: libraries, models that are loaded, watched files, scrapes."""
MAX_SCRAPES = 16

logger = logging.getLogger(__name__)


def open_file_limit() -> int:
    """Return the maximum number of open files of the process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return TARGET_LIMIT if soft == resource.RLIM_INFINITY else soft


def raise_limit() -> None:
    """Raise the limit of open files up to TARGET_LIMIT, as far as the system allows; warn below MIN_LIMIT."""
    soft, (_, hard) = open_file_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = TARGET_LIMIT if hard == resource.RLIM_INFINITY else min(TARGET_LIMIT, hard)
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        logger.info("raised the limit of open files from %d to %d", soft, wanted)
    if (allowed := open_file_limit()) < MIN_LIMIT:
        logger.warning(
            "the limit of `%d` open files allows %d connections; further ones are closed. Raise it with `ulimit -n`, "
            "LimitNOFILE= of systemd or --ulimit of docker",
            allowed,
            max_connections(allowed),
        )


def max_connections(allowed: int) -> int:
    """Return the maximum number of gRPC connections for a limit of open files; the server needs the others."""
    return max(1, allowed - RESERVED_FILES, allowed * 3 // 8)


def max_scrapes(allowed: int) -> int:
    """Return the maximum number of connections to the metrics port; each has a thread."""
    return max(1, min(MAX_SCRAPES, allowed // 8))
