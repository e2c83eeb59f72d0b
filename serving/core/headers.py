"""Headers of a call that mean the same in every protocol: ids, trace context, priority, largest reply."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from serving.core.errors import InvalidRequestError, shorten

REQUEST_ID = "x-request-id"
TRACE_CONTEXT = ("traceparent", "tracestate")
PRIORITY, INTERACTIVE, BULK = "priority", "interactive", "bulk"
MAX_REPLY = "max-reply-bytes"
_HTTP_PRIORITY = re.compile(r"\s*(u=.*|i\b.*)?")
_ID = re.compile(r"[!-~]{1,128}")
"""Printable ASCII without spaces, which fits into a header and a log line."""


def request_id(headers: Mapping[str, str]) -> str:
    """Return the caller's request id, or a new one if it sent none or an unusable one."""
    sent = headers.get(REQUEST_ID, "")
    return sent if _ID.fullmatch(sent) else os.urandom(8).hex()


def trace_context(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of the trace that a call belongs to; empty if it belongs to none."""
    if TRACE_CONTEXT[0] not in headers:
        return {}
    return {name: headers[name] for name in TRACE_CONTEXT if name in headers}


def is_bulk(headers: Mapping[str, str]) -> bool:
    """Return whether a call gives way to interactive calls. Ignore values of RFC 9218, such as `u=3`.

    Raises:
        InvalidRequestError: when the priority is unknown.
    """
    priority = headers.get(PRIORITY, INTERACTIVE)
    if priority not in (INTERACTIVE, BULK) and not _HTTP_PRIORITY.fullmatch(priority):
        raise InvalidRequestError(f"unknown `{PRIORITY}`: `{priority}`; send `{INTERACTIVE}` or `{BULK}`")
    return priority == BULK


def max_reply_bytes(headers: Mapping[str, str]) -> int | None:
    """Return the size of the largest reply that a client accepts; None if it does not say.

    Raises:
        InvalidRequestError: when the value is no number.
    """
    value = headers.get(MAX_REPLY)
    if value is None:
        return None
    if (found := num_bytes(value)) is None:
        raise InvalidRequestError(shorten(f"`{MAX_REPLY}` must be a number of bytes: `{value}`"))
    return found


def num_bytes(value: str) -> int | None:
    """Return the number of bytes that a header gives; None if it is no such number."""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 20 else None
