"""Server with a memory leak, for the memory check to find: it keeps every request that it has answered.

    python -m benchmarks.growing_server models

Takes the arguments of `python -m serving`.
"""

from __future__ import annotations

import sys

from serving.__main__ import main
from serving.core.endpoint import Reply
from serving.core.scheduler import JobResult
from serving.endpoints.base import TextInference

_reply = TextInference.reply
_kept: list[TextInference] = []


def _keep(inference: TextInference, done: JobResult) -> Reply:
    _kept.append(inference)
    return _reply(inference, done)


if __name__ == "__main__":
    TextInference.reply = _keep  # type: ignore[assignment, method-assign]
    sys.exit(main())
