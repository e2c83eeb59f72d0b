"""Errors that calls of the client raise.

BertlineError
├── ConnectionFailed   no server at the target, or it starts or drains
├── TimedOut           no reply within the timeout
├── InvalidInput       an input is invalid; `items` states which and why
├── ModelNotFound      the model or version is not loaded
├── OtherSpace         vectors of another space than the client accepts
├── Overloaded         the server is full, or the request too large
├── Unauthenticated    the server requires credentials
├── PermissionDenied   the credentials do not allow this
└── ServerError        any other failure of the server
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self


class BertlineError(Exception):
    """Base class of the client's errors. `__cause__` is the gRPC error, if there was one."""


class TextsCut(UserWarning):
    """Texts were truncated, as in the model's evaluation. The arguments `truncate` and `usage` turn this off."""


class ConnectionFailed(BertlineError):
    """No server at the target, or it starts or drains."""


class TimedOut(BertlineError):
    """No reply within the timeout."""


@dataclass(frozen=True, slots=True)
class InvalidItem:
    """Problem with one input."""

    index: int | None
    """Position in the caller's list; None if the problem is not with an input."""
    field: str
    """Field of the request: `text`, `text_pair`, `question`, `contexts[0]` or another one."""
    reason: str

    def __str__(self) -> str:
        place = self.field if self.index is None else f"input {self.index}, {self.field}"
        return f"{place}: {self.reason}"


class _ItemsError(Exception):
    """Error that names inputs of a call, or fields of it."""

    def __init__(self, message: str, items: Sequence[InvalidItem] = (), num_items: int = 0) -> None:
        super().__init__(message)
        self.items = list(items)
        self.num_items = max(len(self.items), num_items)
        """Number of problems; above the length of `items` if those are only the first ones."""

    @classmethod
    def of(cls, items: Sequence[InvalidItem], num_items: int = 0) -> Self:
        """Return an error whose message names the first three items and counts the others.

        Args:
            items: inputs or fields.
            num_items: total number, if `items` are only the first ones.
        """
        named = items[:3]
        num_more = max(len(items), num_items) - len(named)
        message = "; ".join(map(str, named)) + (f" (and {num_more} more)" if num_more > 0 else "")
        return cls(message, items, num_items)

    def shifted(self, first: int) -> Self:
        """Return the error of a part of a list, with positions in the whole list.

        Args:
            first: position of the part in the list.
        """
        if not (first and self.items):
            return self
        moved = [item if item.index is None else replace(item, index=item.index + first) for item in self.items]
        return self.of(moved, self.num_items)


class InvalidInput(_ItemsError, BertlineError):
    """Input is invalid for the server, or cannot be encoded as UTF-8."""

    items: list[InvalidItem]
    """Invalid inputs and fields of the first request that was refused; only the first ones if there are very many.
    Empty if the server names none."""


class ModelNotFound(BertlineError):
    """Model or version is not loaded. The message lists the loaded models."""


class OtherSpace(BertlineError):
    """Vectors of another space than the client's `space`, so that they cannot be compared with stored ones."""


class Overloaded(BertlineError):
    """Queue or memory of the server is full, or the request is too large.

    Nothing was computed, unless the reply found no memory.
    """

    is_final = False
    """True if trying again does not help: the request is too large for the server."""


class Unauthenticated(BertlineError):
    """Server requires credentials."""


class PermissionDenied(BertlineError):
    """Credentials do not allow this."""


class ServerError(_ItemsError, BertlineError):
    """Failure of the server, an invalid reply, or a client that was closed before the reply came."""

    items: list[InvalidItem]
    """Inputs for which the model returns no finite numbers, of the first request with such inputs; only the first ones
    if there are very many. The call succeeds without them. Empty for other errors."""
