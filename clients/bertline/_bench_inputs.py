"""What `bertline bench` sends: sentences of its own or a file of inputs, as calls that are serialised once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import Any

from bertline._bench_texts import SENTENCES
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
from bertline._files import FileError, open_input, read_records, read_string
from bertline._rows import question_input, text_input, text_or_pair_input
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

    call: Callable[..., Call[Any]]
    from_text: Callable[[str], Any] = str
    from_row: Callable[[Any], Any] = text_input


def _masked(text: str) -> str:
    words = text.split()
    words[len(words) // 2] = "[MASK]"
    return text if "[MASK]" in text else " ".join(words)


def _choices_input(row: Any) -> tuple[str, str, list[str]]:
    """`question` and `choices`, with `context` where there is one."""
    choices = row.get("choices")
    if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
        raise ValueError("`choices` must be a list of strings")
    return read_string(row, "context") if "context" in row else "", read_string(row, "question"), choices


_EMBED = partial(embed_call, pooling=None, normalize=None, dimensions=None, windows=False, window_stride=None)
_KINDS = {
    "embedding": _Kind(_EMBED),
    "classification": _Kind(partial(classify_call, top_k=None), from_row=text_or_pair_input),
    "regression": _Kind(regress_call, from_row=text_or_pair_input),
    "multiple-choice": _Kind(choose_call, lambda text: ("", text, ["Yes, it is.", "No, it is not."]), _choices_input),
    "spans": _Kind(partial(answer_call, top_k=1), lambda text: ("What is this about?", text), question_input),
    "tagging": _Kind(partial(tag_call, return_words=False)),
    "masked-lm": _Kind(partial(fill_mask_call, top_k=5, targets=()), _masked),
}


def read_inputs(task: str, path: str | None, is_jsonl: bool) -> list[Any]:
    """Inputs of a task's RPC.

    Args:
        task: of the model.
        path: a text a line, or JSONL with the keys of the task: `text` (and `text_pair`), `question` and `context`,
            or `question` and `choices`; `-` is standard input, None the built-in texts. Empty lines are passed over.

    Raises:
        FileError: when the file cannot be read, or holds no input.
    """
    kind = _kind(task)
    if path is None:
        return [kind.from_text(text) for text in SENTENCES]
    inputs: list[Any] = []
    num_bytes = 0
    with open_input(path) as (file, name):
        for record in islice(
            read_records(file, name, kind.from_row if is_jsonl else None, skip_empty=True), MAX_INPUTS
        ):
            inputs.append(record.input if is_jsonl else kind.from_text(record.input))
            num_bytes += len(str(record.input))
            if num_bytes > MAX_BYTES:
                break
    if not inputs:
        raise FileError(f"{name} holds no input; give a file with a text a line")
    return inputs


def make_payloads(
    task: str, inputs: Sequence[Any], *, batch_size: int, model: str = "", version: str = "", truncate: bool = True
) -> Payloads:
    """The calls that are sent, in turn: `batch_size` inputs each, in order, from the first again after the last.

    A call holds fewer where that many exceed the mebibyte that the clients put into one request.
    """
    num_calls = min(len(inputs) // math.gcd(len(inputs), batch_size), max(-(-len(inputs) // batch_size), _MIN_CALLS))
    items = list(islice(cycle(inputs), num_calls * batch_size))
    call = _kind(task).call(items, model, version, truncate)
    requests = call.requests(batch_size)
    return Payloads(call.method, [Payload(item.message.SerializeToString(), item.num_inputs) for item in requests])


def rpc(method: str) -> tuple[str, type[Any]]:
    """The path of an RPC, and the class of its reply."""
    service = pb.DESCRIPTOR.services_by_name["Encoder"]
    return f"/{service.full_name}/{method}", getattr(pb, service.methods_by_name[method].output_type.name)


def _kind(task: str) -> _Kind:
    if task not in _KINDS:
        raise ValueError(f"no call is known for models of task `{task}`; update the client")
    return _KINDS[task]
