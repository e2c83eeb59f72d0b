"""Python values -> requests, replies -> Python values: all that Client and AsyncClient have in common but waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np

from bertline._batches import batches
from bertline._replies import read_answers, read_classifications, read_fills, read_models, read_vectors
from bertline.errors import InvalidInput, InvalidItem, ServerError
from bertline.results import Answer, Classification, MaskFill, Model
from bertline.v1 import encoder_pb2 as pb

MAX_REQUEST_BYTES = 1 << 20
"""Text in one request: well below the 4 MiB that gRPC servers accept unless told otherwise."""
MAX_TOP_K = (1 << 32) - 1
"""What the message can hold: more than there are candidates."""
_NOT_UNICODE = "contains a lone surrogate, which UTF-8 cannot express"

Pooling = Literal["cls", "mean"]
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


def embed_call(
    texts: Iterable[str], model: str, version: str, pooling: Pooling | None, normalize: bool | None, truncate: bool
) -> Call[np.ndarray]:
    """See `Client.embed`."""
    if pooling is not None and pooling not in get_args(Pooling):
        raise ValueError(f"unknown pooling: `{pooling}` (one of: {', '.join(get_args(Pooling))})")
    request = partial(
        pb.EmbedRequest,
        model=_model_ref(model, version),
        pooling=f"POOLING_{pooling.upper()}" if pooling else None,
        normalize=normalize,
        truncate=truncate,
    )
    return Call("Embed", _split(_texts(texts), "texts", request), _collect_vectors)


def classify_call(
    inputs: Iterable[str | tuple[str, str]], model: str, version: str, truncate: bool
) -> Call[list[Classification]]:
    """See `Client.classify`."""
    items = _items(inputs, "inputs")
    rows = [_pair(index, item) if isinstance(item, tuple | list) else (item, None) for index, item in enumerate(items)]
    _check([row if row[1] is not None else row[:1] for row in rows], ("text", "text_pair"))
    messages = [pb.ClassifyInput(text=text, text_pair=text_pair) for text, text_pair in rows]
    request = partial(pb.ClassifyRequest, model=_model_ref(model, version), truncate=truncate)
    return Call("Classify", _split(messages, "inputs", request), partial(_collect, read=read_classifications))


def answer_call(
    inputs: Iterable[tuple[str, str]], model: str, version: str, top_k: int, truncate: bool
) -> Call[list[Answer]]:
    """See `Client.answer`."""
    rows = [_pair(index, item) for index, item in enumerate(_items(inputs, "inputs"))]
    _check(rows, ("question", "context"))
    messages = [pb.AnswerInput(question=question, context=context) for question, context in rows]
    request = partial(pb.AnswerRequest, model=_model_ref(model, version), top_k=_top_k(top_k), truncate=truncate)
    return Call("Answer", _split(messages, "inputs", request), partial(_collect, read=read_answers))


def fill_mask_call(
    texts: Iterable[str], model: str, version: str, top_k: int, targets: Iterable[str], truncate: bool
) -> Call[list[tuple[MaskFill, ...]]]:
    """See `Client.fill_mask`."""
    request = partial(
        pb.FillMaskRequest,
        model=_model_ref(model, version),
        top_k=_top_k(top_k),
        targets=[_option("targets", target) for target in _items(targets, "targets")],
        truncate=truncate,
    )
    return Call("FillMask", _split(_texts(texts), "texts", request), partial(_collect, read=read_fills))


def models_call() -> Call[list[Model]]:
    """See `Client.models`."""
    return Call(
        "ListModels",
        lambda batch_size: [Request(pb.ListModelsRequest())],
        lambda answered: [model for _, reply in answered for model in read_models(reply)],
    )


def _split(items: Sequence[ItemT], field: str, request: Callable[..., Any]) -> Callable[[int], Iterator[Request]]:
    """Cut the inputs into requests, lazily: the messages of a long list do not all exist at one time."""

    def requests(batch_size: int) -> Iterator[Request]:
        first = 0
        for part in batches(items, _num_bytes, max_items=batch_size, max_bytes=MAX_REQUEST_BYTES):
            yield Request(request(**{field: part}), first, len(part))
            first += len(part)

    return requests


def _num_bytes(item: Any) -> int:
    return len(item.encode()) if isinstance(item, str) else item.ByteSize()


def _collect(answered: Iterable[Answered], read: Callable[[Any], list[ItemT]]) -> list[ItemT]:
    return list(chain.from_iterable(_parts(answered, read)))


def _collect_vectors(answered: Iterable[Answered]) -> np.ndarray:
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


def _items(values: Iterable[ItemT], name: str) -> list[ItemT]:
    if isinstance(values, str):
        raise TypeError(f"`{name}` must be a list, one string came; write `[text]`")
    return list(values)


def _texts(values: Iterable[str]) -> list[str]:
    texts = _items(values, "texts")
    _check([(text,) for text in texts], ("text",))
    return texts


def _pair(index: int, item: Any) -> tuple[Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 2:
        came = f"{len(item)} values" if isinstance(item, tuple | list) else f"a {type(item).__name__}"
        raise TypeError(f"input {index}: a pair of strings is needed, {came} came; for a single pair write `[(a, b)]`")
    return item[0], item[1]


def _check(rows: Sequence[Sequence[Any]], fields: Sequence[str]) -> None:
    """Refuse what is not a string, or cannot be written as UTF-8."""
    invalid = []
    for index, row in enumerate(rows):
        for field, value in zip(fields, row, strict=False):
            if not isinstance(value, str):
                raise TypeError(f"input {index}, {field}: a string is needed, a {type(value).__name__} came")
            if not _is_unicode(value):
                invalid.append(InvalidItem(index, field, _NOT_UNICODE))
    if invalid:
        raise InvalidInput.of(invalid)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _option(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"`{name}`: a string is needed, `{value!r}` came")
    if not _is_unicode(value):
        raise InvalidInput.of([InvalidItem(None, name, _NOT_UNICODE)])
    return value


def _model_ref(model: str, version: str) -> pb.ModelRef:
    return pb.ModelRef(name=_option("model", model), version=_option("version", version))


def _top_k(top_k: int) -> int:
    if top_k < 1:
        raise ValueError(f"`top_k` must be at least 1: `{top_k}`")
    return min(top_k, MAX_TOP_K)
