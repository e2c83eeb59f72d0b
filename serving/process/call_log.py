"""Log line of each ended call."""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from serving.core.calls import Call
from serving.process.logs import LineLimit

logger = logging.getLogger("serving.calls")

MAX_FAILED_PER_S = 50
"""Maximum number of lines for failed calls per second. The first line of a later second gives the number
of omitted lines."""


class CallLog:
    """Logs ended calls: all, the failed ones, or none."""

    def __init__(self, log_calls: str) -> None:
        """Set which calls are logged.

        Args:
            log_calls: `all`, `failed` or `none`.
        """
        self._all = log_calls == "all"
        self._failed = log_calls != "none"
        self._limit = LineLimit(MAX_FAILED_PER_S)

    def __call__(self, call: Call) -> None:
        """Log a call."""
        is_closed_watch = call.method == "Watch" and call.status == "CANCELLED"  # every watch ends like this
        if call.status == "OK" or is_closed_watch:
            if self._all:
                logger.info("call", extra={"fields": _fields(call)})
        elif self._failed and (omitted := self._limit.omitted()) is not None:
            logger.info("call", extra={"fields": _fields(call) | ({"omitted": omitted} if omitted else {})})


def _fields(call: Call) -> dict[str, Any]:
    optional = {
        "error": call.details,
        "model": call.model,
        "inputs": call.num_inputs,
        "tokens": call.num_tokens,
        "from_cache": call.from_cache,
        "request_bytes": call.request_bytes,
        "reply_bytes": call.reply_bytes,
        "trace_id": call.trace_context.get("traceparent", "")[3:35],
    }
    durations: defaultdict[str, float] = defaultdict(float)  # a call may have several stages of the same name
    for stage in call.stages:
        durations[f"{stage.name}_ms"] += stage.seconds
    return {
        "method": call.method,
        "code": call.status,
        "request_id": call.request_id,
        "peer": call.peer,
        **{name: value for name, value in optional.items() if value},
        **{name: round(1000 * seconds, 2) for name, seconds in {"ms": call.seconds, **durations}.items()},
    }
