"""Call that the current asyncio task handles. Threads get the call as an argument."""

from __future__ import annotations

from contextvars import ContextVar

from serving.core.calls import Call

_current: ContextVar[Call] = ContextVar("call")

set_current_call = _current.set
current_call = _current.get
