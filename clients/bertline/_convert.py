"""What Client and AsyncClient have in common but waiting: requests out of a list, one result out of the replies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from bertline._batches import batches
from bertline._replies import read_vectors
from bertline.errors import ServerError
from bertline.results import Timings, Usage

MAX_REQUEST_BYTES = 192 * 1024
"""Text in one request: 64 texts of more tokens than BERT reads, some thousand short ones. deploy/kubernetes.yaml lets a
server take messages of 256 KiB, and it takes 4 MiB unless told otherwise."""

ItemT = TypeVar("ItemT")
PartT = TypeVar("PartT", bound="Sequence[Any] | np.ndarray")
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
    collect: Callable[[Iterable[Answered]], ResultT]
    """The result, from the replies in the order of the requests."""

    def result(self, answered: Iterable[Answered], usage: Usage | None) -> ResultT:
        """The result; what it took is added to `usage`, unless it fails."""
        if usage is None:
            return self.collect(answered)
        found = Usage()
        result = self.collect(_used(answered, found))
        usage.num_tokens += found.num_tokens
        usage.num_truncated += found.num_truncated
        usage.timings += found.timings
        return result


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


def collect(answered: Iterable[Answered], read: Callable[[Any], list[ItemT]]) -> list[ItemT]:
    """The results of all replies, in order."""
    return list(chain.from_iterable(_parts(answered, read)))


def collect_vectors(answered: Iterable[Answered]) -> np.ndarray:
    """The vectors of all replies, in order."""
    parts = list(_parts(answered, read_vectors))
    return np.concatenate(parts, dtype=np.float32) if parts else np.empty((0, 0), dtype=np.float32)


def _parts(answered: Iterable[Answered], read: Callable[[Any], PartT]) -> Iterator[PartT]:
    """Read replies, each of which must hold one result for each input, all of one model."""
    first_model = None
    for request, reply in answered:
        part = read(reply)
        if len(part) != request.num_inputs:
            raise ServerError(f"the server sent {len(part)} results for {request.num_inputs} inputs")
        model = f"{reply.model.name}/{reply.model.version}"
        first_model = first_model or model
        if model != first_model:
            raise ServerError(f"`{first_model}` replied to some inputs, `{model}` to others; ask for one version")
        yield part


def _used(answered: Iterable[Answered], usage: Usage) -> Iterator[Answered]:
    for request, reply in answered:
        usage.num_tokens += reply.num_tokens
        usage.num_truncated += reply.num_truncated
        timings = reply.timings
        usage.timings.append(Timings(timings.tokenize_s, timings.queue_s, timings.inference_s))
        yield request, reply
