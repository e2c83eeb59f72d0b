"""What a call of the client can raise.

BertlineError
├── ConnectionFailed   no server at the target, or it is starting or draining
├── TimedOut           no reply within the timeout
├── InvalidInput       the server cannot use an input; `items` says which and why
├── ModelNotFound      no such model or version is loaded
├── Overloaded         the queue of the server is full
├── Unauthenticated    the server asks for credentials
├── PermissionDenied   the credentials do not allow this
└── ServerError        anything else: a fault of the server
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class BertlineError(Exception):
    """Whatever keeps a server from answering. The gRPC error, where there was one, is its `__cause__`."""


class TextsCut(UserWarning):
    """A server cut texts as the model was evaluated so; the call set neither `truncate` nor `usage`."""


class ConnectionFailed(BertlineError):
    """No server at the target, or it is starting or draining."""


class TimedOut(BertlineError):
    """No reply within the timeout."""


@dataclass(frozen=True, slots=True)
class InvalidItem:
    """Why one input cannot be used."""

    index: int | None
    """Position in the list that the caller gave; None when something else than an input is wrong."""
    field: str
    """`text`, `text_pair`, `question`, `contexts[0]`, or another field of the request."""
    reason: str

    def __str__(self) -> str:
        place = self.field if self.index is None else f"input {self.index}, {self.field}"
        return f"{place}: {self.reason}"


class InvalidInput(BertlineError):
    """The server, or UTF-8, cannot use an input."""

    def __init__(self, message: str, items: Sequence[InvalidItem] = ()) -> None:
        super().__init__(message)
        self.items = list(items)
        """Bad inputs of the first request that was refused, as many as fit in what a server sends with an error, and
        bad fields of the call; empty when the server names none."""

    @classmethod
    def of(cls, items: Sequence[InvalidItem], num_items: int = 0) -> InvalidInput:
        """The error whose message tells the first of `items`, and how many there are.

        Args:
            num_items: of all, where `items` are the first ones.
        """
        return cls(_listed(items, num_items), items)


def _listed(items: Sequence[InvalidItem], num_items: int = 0) -> str:
    told = items[:3]
    num_more = max(len(items), num_items) - len(told)
    return "; ".join(map(str, told)) + (f" (and {num_more} more)" if num_more > 0 else "")


class ModelNotFound(BertlineError):
    """No such model or version is loaded; the message lists what is."""


class Overloaded(BertlineError):
    """The queue of the server is full; nothing was computed."""

    is_final = False
    """Whether the server says that trying again will not help: the request is too large for it."""


class Unauthenticated(BertlineError):
    """The server asks for credentials."""


class PermissionDenied(BertlineError):
    """The credentials do not allow this."""


class ServerError(BertlineError):
    """A fault of the server, a reply that cannot be right, or a client that was closed before the reply came."""

    def __init__(self, message: str, items: Sequence[InvalidItem] = ()) -> None:
        super().__init__(message)
        self.items = list(items)
        """Inputs that have no answer, as the model gives no finite numbers for them; of several requests, those of the
        first that has any. Without them, the others would be answered. Empty for other errors."""

    @classmethod
    def of(cls, items: Sequence[InvalidItem]) -> ServerError:
        """The error whose message tells the first of `items`, and how many there are."""
        return cls(_listed(items), items)
