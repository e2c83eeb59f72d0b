"""Conversion of inputs to requests, and of replies to one result. Shared by Client and AsyncClient."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import numpy as np

from bertline._batches import batches
from bertline.errors import OtherSpace, ServerError, TextsCut
from bertline.results import Timings, Usage

MAX_REQUEST_BYTES = 192 * 1024
"""Maximum bytes of text in one request: enough for 64 long texts or some thousand short ones. Servers accept messages
of 4 MiB by default, and of 256 KiB with deploy/kubernetes.yaml."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Request:
    """Message to send, with the position of its inputs in the caller's list."""

    message: Any
    first: int = 0
    num_inputs: int = 0
    first_document: int = 0
    """Position of the request's first document in its input; above 0 if earlier requests hold those before."""
    num_documents: int = 0
    """Documents of all inputs, of `rerank`."""

    @property
    def num_parts(self) -> int:
        """Number of parts that separate requests can hold: documents of `rerank`, or inputs."""
        return max(self.num_inputs, self.num_documents)


def join_lists(parts: list[list[ItemT]]) -> list[ItemT]:
    """Join lists of results."""
    return list(chain.from_iterable(parts))


@dataclass(frozen=True)
class Call(Generic[ResultT]):
    """Call of a client method. The functions in `operations` return it; both clients have methods of their signatures.

    `Client` sends it and returns the result; `AsyncClient` returns a coroutine.
    """

    method: str
    """Name of the RPC."""
    requests: Callable[[int], Iterable[Request]]
    """Returns the requests, given the maximum number of inputs in one."""
    read: Callable[[Any], Any]
    """Reads a reply. For a request with inputs, the result has one item per input."""
    timeout: float | None = None
    """Maximum seconds for each request; None for the client's timeout."""
    usage: Usage | None = None
    """Receives tokens, truncation and timings, unless the call fails."""
    join: Callable[[list[Any]], Any] = join_lists
    """Joins the read replies, in the order of the requests, to the result."""
    merge: Callable[[Any, Any, int], Any] | None = None
    """Merges the result for further documents of an input, from a position on, into that for the documents before."""


class ReplyCollector(Generic[ResultT]):
    """Collector of the replies to a call. Checks each one, and that all are of one model version."""

    def __init__(self, call: Call[ResultT]) -> None:
        self._call = call
        self._parts: list[Any] = []
        self._first_model = self._first_space = ""
        self._usage = Usage()
        self._num_truncated = 0

    def add(self, request: Request, reply: Any) -> None:
        """Read and add the next reply, in the order of the requests.

        Raises:
            ServerError: if the reply is invalid.
        """
        try:
            part = self._call.read(reply)
        except ServerError as error:
            raise error.shifted(request.first) from None
        if request.num_inputs and len(part) != request.num_inputs:
            raise ServerError(f"the server sent {len(part)} results for {request.num_inputs} inputs")
        self.add_part(request, part, reply)

    def add_part(self, request: Request, part: Any, reply: Any) -> None:
        """Add the results that were read from a reply.

        Args:
            request: request of the results.
            part: one result for each input.
            reply: the reply, or an object with those of its fields that are not results.

        Raises:
            ServerError: if another model replied before, or the model was replaced.
            OtherSpace: if the request names another space.
        """
        if request.num_inputs:
            model, space = f"{reply.model.name}/{reply.model.version}", reply.model.space
            if (wanted := request.message.model.space) not in ("", space):
                raise OtherSpace(f"`{model}` gives vectors of space `{space or 'unknown'}`, not of `{wanted}`")
            if not self._first_model:
                self._first_model, self._first_space = model, space
            if model != self._first_model:
                raise ServerError(
                    f"`{self._first_model}` replied to some inputs, `{model}` to others; give one `version`"
                )
            if space != self._first_space:
                raise ServerError(f"`{model}` was replaced between two requests, by one of another space; call again")
        continues = request.first_document > 0
        if self._call.usage is not None:
            _add_usage(self._usage, reply, continues=continues)
        elif (
            num_truncated := sum(map(bool, getattr(reply, "num_truncated", ())[continues:]))
        ) and not request.message.HasField("truncate"):
            self._num_truncated += num_truncated
        if continues and self._call.merge:
            self._parts[-1][-1] = self._call.merge(self._parts[-1][-1], part[0], request.first_document)
            part = part[1:]
        if not continues or part:
            self._parts.append(part)

    def result(self) -> ResultT:
        """Return the result after all replies were added. Warn if texts were truncated without `truncate=True`."""
        result: ResultT = self._call.join(self._parts)
        if (usage := self._call.usage) is not None:
            usage.num_tokens += self._usage.num_tokens
            usage.num_truncated += self._usage.num_truncated
            usage.timings += self._usage.timings
            usage.space = self._usage.space or usage.space
        if self._num_truncated:
            warnings.warn(
                f"`{self._first_model}` truncated {self._num_truncated} inputs, as in its evaluation; truncate=True "
                "accepts this, truncate=False raises InvalidInput, usage=Usage() reports which",
                TextsCut,
                stacklevel=4,
            )
        return result


def _add_usage(usage: Usage, reply: Any, *, continues: bool) -> None:
    """Add the usage of a reply; `continues` is true if its first input continues the last one of the reply before."""
    num_tokens, num_truncated = list(reply.num_tokens), list(reply.num_truncated)
    if continues:
        usage.num_tokens[-1] += num_tokens.pop(0)
        del num_truncated[0]  # of the same query
    usage.num_tokens += num_tokens
    usage.num_truncated += num_truncated
    timings, usage.space = reply.timings, reply.model.space
    usage.timings.append(Timings(timings.tokenize_s, timings.queue_s, timings.inference_s))


@dataclass(frozen=True, slots=True)
class Split:
    """Function that splits inputs into requests lazily, so that few messages exist at the same time."""

    items: Sequence[Any]
    """Inputs."""
    field: str
    """Field of the request that holds them."""
    request: Callable[..., Any]
    """Returns the message."""
    max_items: int | None = None
    """Maximum number of inputs in a request, besides the one that the function is given."""
    other_bytes: int = 0
    """Bytes of each request besides its inputs."""

    def __call__(self, batch_size: int) -> Iterator[Request]:
        """Yield the requests, each with at most `batch_size` inputs."""
        first = 0
        for part in batches(self.items, num_bytes, max_items=self.limit(batch_size), max_bytes=self.max_bytes):
            yield Request(self.request(**{self.field: part}), first, len(part))
            first += len(part)

    def limit(self, batch_size: int) -> int:
        """Return the maximum number of inputs in a request."""
        return min(batch_size, self.max_items or batch_size)

    @property
    def max_bytes(self) -> int:
        """Maximum bytes of the inputs in a request."""
        return max(0, MAX_REQUEST_BYTES - self.other_bytes)

    @property
    def num_bytes(self) -> int:
        """Bytes of the inputs."""
        return sum(map(num_bytes, self.items))

    @property
    def options(self) -> bytes:
        """Request without inputs, as a key: calls with the same options can share a request."""
        return bytes(self.request().SerializeToString(deterministic=True))

    @staticmethod
    def merged(splits: Sequence[Split]) -> Request:
        """Return one request with the inputs of several calls that have the same options."""
        items = [item for split in splits for item in split.items]
        first = splits[0]
        return Request(first.request(**{first.field: items}), 0, len(items))


def num_bytes(item: Any) -> int:
    """Return the size of a text or message."""
    if isinstance(item, str):
        return len(item) if item.isascii() else len(item.encode())
    return item.ByteSize()


def join_vectors(parts: list[np.ndarray], *, dtype: str) -> np.ndarray:
    """Join vectors; [0, 0] of the type for none.

    Raises:
        ServerError: if their lengths differ.
    """
    if len(lengths := {part.shape[1] for part in parts}) > 1:
        named = " and ".join(map(str, sorted(lengths)))
        raise ServerError(f"the server sent vectors of lengths {named}: the model was replaced meanwhile; call again")
    native = np.dtype(dtype).newbyteorder("=")
    return np.concatenate(parts, dtype=native) if parts else np.empty((0, 0), dtype=native)


def only(parts: list[ItemT]) -> ItemT:
    """Return the only item."""
    (part,) = parts
    return part
