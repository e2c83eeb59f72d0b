"""Inputs of `bertline bench`: built-in sentences or a file, serialised once as calls."""

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
    embed_sparse_call,
    embed_tokens_call,
    fill_mask_call,
    regress_call,
    tag_call,
)
from bertline._convert import Call
from bertline.bench.texts import SENTENCES
from bertline.jobs.operations import OPERATIONS, Operation
from bertline.jobs.rows import Row, text_bytes
from bertline.jobs.sources import STANDARD_INPUT, Format, Source, source_of
from bertline.jobs.storage import FileError, find_files
from bertline.v1 import encoder_pb2 as pb

MAX_INPUTS, MAX_BYTES = 100_000, 64 << 20
"""Maximum number of inputs and bytes to read from a file. The rest is not sent."""
_MIN_CALLS = 64
"""Minimum number of different calls. Few inputs are repeated in other combinations."""


@dataclass(frozen=True, slots=True)
class Payload:
    """Serialised request of a call."""

    body: bytes
    num_texts: int


@dataclass(frozen=True)
class Payloads:
    """Calls to send in turn."""

    method: str
    """Name of the RPC."""
    items: Sequence[Payload]


@dataclass(frozen=True)
class _InputMaker:
    """Maker of inputs and calls for a task."""

    operation: Operation
    call: Callable[..., Call[Any]]
    row: Callable[[str], dict[str, Any]] = lambda text: {"text": text}
    """Makes a row of the operation from a text."""


_MASKS = ("[MASK]", "<mask>")
"""Usual mask tokens; the first one is put into texts without any."""


def _with_mask(text: str) -> dict[str, Any]:
    words = text.split()
    words[len(words) // 2] = _MASKS[0]
    return {"text": text if any(mask in text for mask in _MASKS) else " ".join(words)}


def _with_choices(text: str) -> dict[str, Any]:
    return {"question": text, "choices": ["Yes, it is.", "No, it is not."]}


def _with_question(text: str) -> dict[str, Any]:
    return {"question": "What is this about?", "context": text}


_EMBED = partial(
    embed_call,
    pooling=None,
    normalize=None,
    dimensions=None,
    windows=False,
    window_stride=None,
    prompt_name=None,
    input_type=None,
    format="float32",
)
_EMBED_SPARSE = partial(embed_sparse_call, top_k=None, return_tokens=False, prompt_name=None, input_type=None)
_EMBED_TOKENS = partial(embed_tokens_call, input_type=None, prompt_name=None, format="float32", return_offsets=False)
_INPUT_MAKERS = {
    maker.operation.task: maker
    for maker in (
        _InputMaker(OPERATIONS["embed"], _EMBED),
        _InputMaker(OPERATIONS["embed_sparse"], _EMBED_SPARSE),
        _InputMaker(OPERATIONS["embed_tokens"], _EMBED_TOKENS),
        _InputMaker(OPERATIONS["classify"], partial(classify_call, top_k=None)),
        _InputMaker(OPERATIONS["regress"], regress_call),
        _InputMaker(OPERATIONS["choose"], choose_call, _with_choices),
        _InputMaker(OPERATIONS["answer"], partial(answer_call, top_k=1), _with_question),
        _InputMaker(OPERATIONS["tag"], partial(tag_call, return_words=False)),
        _InputMaker(OPERATIONS["fill_mask"], partial(fill_mask_call, top_k=5, targets=()), _with_mask),
    )
}


def read_inputs(task: str, path: str | None, chosen: Format | None = None) -> list[Any]:
    """Return inputs for a task's RPC.

    Args:
        task: task of the model.
        path: file of texts, or of rows with the columns of the task, or a pattern of files; `-` for standard input,
            None for the built-in texts. Empty lines are skipped.
        chosen: format of the file; None to infer it from the name.

    Raises:
        FileError: if the file cannot be read, or has no input or an invalid one.
    """
    maker = _input_maker(task)
    if path is None:
        return [maker.operation.read(maker.row(text), {}) for text in SENTENCES]
    files = [STANDARD_INPUT] if path == "-" else find_files([path])
    sources = [source_of(file, chosen, skip_empty=True) for file in files]
    inputs: list[Any] = []
    num_bytes = 0
    columns = [*maker.operation.needed, *maker.operation.optional]
    for source, row in _rows(sources, columns):
        try:
            if row.reason:
                raise ValueError(row.reason)
            fields = maker.row(row.fields["text"]) if source.format is Format.text else row.fields
            inputs.append(maker.operation.read(fields, {}))
        except ValueError as error:
            raise FileError(f"{source.name}, {row.place}: {error}") from error
        num_bytes += text_bytes(inputs[-1])
        if len(inputs) == MAX_INPUTS or num_bytes > MAX_BYTES:
            break
    if not inputs:
        raise FileError(f"{sources[0].name} has no inputs; give a file with one text per line")
    return inputs


def _rows(sources: Sequence[Source], columns: Sequence[str]) -> Iterator[tuple[Source, Row]]:
    for source in sources:
        for block in source.blocks(columns, []):
            yield from ((source, row) for row in block.rows)


def make_payloads(
    task: str, inputs: Sequence[Any], *, batch_size: int, model: str = "", version: str = "", truncate: bool = True
) -> Payloads:
    """Make the calls to send in turn, each with `batch_size` inputs.

    Inputs are taken in order; after the last one, the first one follows again. All occur equally often, except that
    the first ones may occur once more to fill the last call.
    """
    num_rounds = min(batch_size // math.gcd(len(inputs), batch_size), -(-_MIN_CALLS * batch_size // len(inputs)))
    num_calls = -(-num_rounds * len(inputs) // batch_size)
    items = cycle(inputs)
    parts = [list(islice(items, batch_size)) for _ in range(num_calls)]
    calls = [_input_maker(task).call(part, model, version, truncate) for part in parts]
    return Payloads(calls[0].method, [Payload(_body(call, batch_size), batch_size) for call in calls])


def _body(call: Call[Any], num_inputs: int) -> bytes:
    """Serialise all inputs as one message. Protobuf parses concatenated messages as one with joined lists."""
    return b"".join(request.message.SerializeToString() for request in call.requests(num_inputs))


def rpc(method: str) -> tuple[str, type[Any]]:
    """Return the path of an RPC, and the class of its reply."""
    service = pb.DESCRIPTOR.services_by_name["Encoder"]
    return f"/{service.full_name}/{method}", getattr(pb, service.methods_by_name[method].output_type.name)


def _input_maker(task: str) -> _InputMaker:
    if task not in _INPUT_MAKERS:
        raise ValueError(f"this client does not know task `{task}`; update it")
    return _INPUT_MAKERS[task]
