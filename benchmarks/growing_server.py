"""A server that grows, for the check of memory to find: it keeps every request that it has answered.

    python -m benchmarks.growing_server models

Takes the arguments of `python -m serving`.
"""

from __future__ import annotations

import sys

from serving.__main__ import main
from serving.core.scheduler import JobResult
from serving.core.service import Reply
from serving.endpoints.work import Work

_reply = Work.reply
_kept: list[Work] = []


def _keep(work: Work, done: JobResult) -> Reply:
    _kept.append(work)
    return _reply(work, done)


if __name__ == "__main__":
    Work.reply = _keep  # type: ignore[assignment, method-assign]
    sys.exit(main())
