"""What `bertline bench` sends: sentences of its own or a file of inputs, as calls that are serialised once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

from bertline._calls import (
    answer_call,
    choose_call,
    classify_call,
    embed_call,
    fill_mask_call,
    regress_call,
    tag_call,
)
from bertline._convert import Call
from bertline.bench.texts import SENTENCES
from bertline.jobs.operations import OPERATIONS, Operation
from bertline.jobs.read.rows import Row, text_bytes
from bertline.jobs.read.sources import STANDARD_INPUT, Format, Source, source_of
from bertline.jobs.storage import FileError, find_files
from bertline.v1 import encoder_pb2 as pb

MAX_INPUTS, MAX_BYTES = 100_000, 64 << 20
"""Of a file, what is read; what comes after it is never sent."""
_MIN_CALLS = 64
"""So many different calls are made of inputs that would fit into fewer."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A call that is ready to be sent."""

    body: bytes
    num_texts: int


@dataclass(frozen=True)
class Payloads:
    """What is sent, in turn."""

    method: str
    """Name of the RPC."""
    items: Sequence[Payload]


@dataclass(frozen=True)
class _Kind:
    """How inputs of a task come about."""

    operation: Operation
    call: Callable[..., Call[Any]]
    row: Callable[[str], dict[str, Any]] = lambda text: {"text": text}
    """A row of the operation, out of a text."""


def _masked(text: str) -> dict[str, Any]:
    words = text.split()
    words[len(words) // 2] = "[MASK]"
    return {"text": text if "[MASK]" in text else " ".join(words)}


def _with_choices(text: str) -> dict[str, Any]:
    return {"question": text, "choices": ["Yes, it is.", "No, it is not."]}


def _with_question(text: str) -> dict[str, Any]:
    return {"question": "What is this about?", "context": text}


_EMBED = partial(embed_call, pooling=None, normalize=None, dimensions=None, windows=False, window_stride=None)
_KINDS = {
    kind.operation.task: kind
    for kind in (
        _Kind(OPERATIONS["embed"], _EMBED),
        _Kind(OPERATIONS["classify"], partial(classify_call, top_k=None)),
        _Kind(OPERATIONS["regress"], regress_call),
        _Kind(OPERATIONS["choose"], choose_call, _with_choices),
        _Kind(OPERATIONS["answer"], partial(answer_call, top_k=1), _with_question),
        _Kind(OPERATIONS["tag"], partial(tag_call, return_words=False)),
        _Kind(OPERATIONS["fill_mask"], partial(fill_mask_call, top_k=5, targets=()), _masked),
    )
}


def read_inputs(task: str, path: str | None, chosen: Format | None = None) -> list[Any]:
    """Inputs of a task's RPC.

    Args:
        task: of the model.
        path: a file of texts, or of rows with the columns of the task, or a pattern of files; `-` is standard input,
            None the built-in texts. Empty lines are passed over.
        chosen: how the file is read; None for what its name says.

    Raises:
        FileError: when the file cannot be read, holds no input, or one that cannot be used.
    """
    kind = _kind(task)
    if path is None:
        return [kind.operation.read(kind.row(text), {}) for text in SENTENCES]
    files = [STANDARD_INPUT] if path == "-" else find_files([path])
    sources = [source_of(file, chosen, skip_empty=True) for file in files]
    inputs: list[Any] = []
    num_bytes = 0
    columns = [*kind.operation.needed, *kind.operation.optional]
    for source, row in _rows(sources, columns):
        try:
            if row.reason:
                raise ValueError(row.reason)
            fields = kind.row(row.fields["text"]) if source.format is Format.text else row.fields
            inputs.append(kind.operation.read(fields, {}))
        except ValueError as error:
            raise FileError(f"{source.name}, {row.place}: {error}") from error
        num_bytes += text_bytes(inputs[-1])
        if len(inputs) == MAX_INPUTS or num_bytes > MAX_BYTES:
            break
    if not inputs:
        raise FileError(f"{sources[0].name} holds no input; give a file with a text a line")
    return inputs


def _rows(sources: Sequence[Source], columns: Sequence[str]) -> Iterator[tuple[Source, Row]]:
    for source in sources:
        for block in source.blocks(columns, []):
            yield from ((source, row) for row in block.rows)


def make_payloads(
    task: str, inputs: Sequence[Any], *, batch_size: int, model: str = "", version: str = "", truncate: bool = True
) -> Payloads:
    """The calls that are sent, in turn: `batch_size` inputs each, in order, from the first again after the last.

    They hold all inputs equally often, but for those that fill the last call up.
    """
    num_rounds = min(batch_size // math.gcd(len(inputs), batch_size), -(-_MIN_CALLS * batch_size // len(inputs)))
    num_calls = -(-num_rounds * len(inputs) // batch_size)
    items = cycle(inputs)
    parts = [list(islice(items, batch_size)) for _ in range(num_calls)]
    calls = [_kind(task).call(part, model, version, truncate) for part in parts]
    return Payloads(calls[0].method, [Payload(_body(call, batch_size), batch_size) for call in calls])


def _body(call: Call[Any], num_inputs: int) -> bytes:
    """One message of all inputs: protobuf reads messages that follow each other as one, their lists joined."""
    return b"".join(request.message.SerializeToString() for request in call.requests(num_inputs))


def rpc(method: str) -> tuple[str, type[Any]]:
    """The path of an RPC, and the class of its reply."""
    service = pb.DESCRIPTOR.services_by_name["Encoder"]
    return f"/{service.full_name}/{method}", getattr(pb, service.methods_by_name[method].output_type.name)


def _kind(task: str) -> _Kind:
    if task not in _KINDS:
        raise ValueError(f"no call is known for models of task `{task}`; update the client")
    return _KINDS[task]
