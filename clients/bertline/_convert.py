"""What Client and AsyncClient have in common but waiting: requests out of a list, one result out of the replies."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from bertline._batches import batches
from bertline.errors import InvalidItem, ServerError, TextsCut
from bertline.results import Timings, Usage

MAX_REQUEST_BYTES = 192 * 1024
"""Text in one request: 64 texts of more tokens than BERT reads, some thousand short ones. deploy/kubernetes.yaml lets a
server take messages of 256 KiB, and it takes 4 MiB unless told otherwise."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Request:
    """A message to send, and which inputs of the caller's list it holds."""

    message: Any
    first: int = 0
    num_inputs: int = 0


Answered = tuple[Request, Any]
"""A request with its reply."""


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """One call of a client method."""

    method: str
    """Name of the RPC."""
    requests: Callable[[int], Iterable[Request]]
    """The requests to send, given the most inputs that one may hold."""
    read: Callable[[Any], Any]
    """What a reply holds; of a request with inputs, something for each of them."""
    join: Callable[[list[Any]], ResultT]
    """The result, from what the replies hold in the order of the requests."""


class Replies(Generic[ResultT]):
    """The replies to a call, each read and checked as it comes; those to inputs must all be of one model.

    Args:
        usage: gets what the call took, unless it fails.
    """

    def __init__(self, call: Call[ResultT], usage: Usage | None) -> None:
        self._call = call
        self._parts: list[Any] = []
        self._first_model = ""
        self._usage = usage
        self._found = Usage()
        self._num_cut = 0

    def add(self, request: Request, reply: Any) -> None:
        """Read the next one, in the order of the requests.

        Raises:
            ServerError: when it cannot be right.
        """
        try:
            part = self._call.read(reply)
        except ServerError as error:
            if not (error.items and request.first):
                raise
            raise ServerError.of([_moved(item, request.first) for item in error.items]) from None
        if request.num_inputs:
            self._check(request, reply, len(part))
        if self._usage is not None:
            _add_usage(self._found, reply)
        elif (num_cut := sum(map(bool, getattr(reply, "num_truncated", ())))) and not request.message.HasField(
            "truncate"
        ):
            self._num_cut += num_cut
        self._parts.append(part)

    def result(self) -> ResultT:
        """The result, when all were added."""
        result = self._call.join(self._parts)
        if self._usage is not None:
            self._usage.num_tokens += self._found.num_tokens
            self._usage.num_truncated += self._found.num_truncated
            self._usage.timings += self._found.timings
        if self._num_cut:
            warnings.warn(
                f"`{self._first_model}` cut {self._num_cut} of the inputs to what it reads, as when it was evaluated; "
                "truncate=True takes that, truncate=False raises InvalidInput, usage=Usage() tells which",
                TextsCut,
                stacklevel=4,
            )
        return result

    def _check(self, request: Request, reply: Any, num_results: int) -> None:
        if num_results != request.num_inputs:
            raise ServerError(f"the server sent {num_results} results for {request.num_inputs} inputs")
        model = f"{reply.model.name}/{reply.model.version}"
        self._first_model = self._first_model or model
        if model != self._first_model:
            raise ServerError(f"`{self._first_model}` replied to some inputs, `{model}` to others; ask for one version")


def _moved(item: InvalidItem, first: int) -> InvalidItem:
    return item if item.index is None else replace(item, index=item.index + first)


def _add_usage(usage: Usage, reply: Any) -> None:
    usage.num_tokens += reply.num_tokens
    usage.num_truncated += reply.num_truncated
    timings = reply.timings
    usage.timings.append(Timings(timings.tokenize_s, timings.queue_s, timings.inference_s))


def split(items: Sequence[ItemT], field: str, request: Callable[..., Any]) -> Callable[[int], Iterator[Request]]:
    """Cut the inputs into requests, lazily: the messages of a long list do not all exist at one time."""

    def requests(batch_size: int) -> Iterator[Request]:
        first = 0
        for part in batches(items, _num_bytes, max_items=batch_size, max_bytes=MAX_REQUEST_BYTES):
            yield Request(request(**{field: part}), first, len(part))
            first += len(part)

    return requests


def _num_bytes(item: Any) -> int:
    if isinstance(item, str):
        return len(item) if item.isascii() else len(item.encode())
    return item.ByteSize()


def join_lists(parts: list[list[ItemT]]) -> list[ItemT]:
    """The results of all replies, in order."""
    return list(chain.from_iterable(parts))


def join_vectors(parts: list[np.ndarray]) -> np.ndarray:
    """The vectors of all replies, in order."""
    return np.concatenate(parts, dtype=np.float32) if parts else np.empty((0, 0), dtype=np.float32)


def only(parts: list[ItemT]) -> ItemT:
    """What the one reply holds."""
    (part,) = parts
    return part
