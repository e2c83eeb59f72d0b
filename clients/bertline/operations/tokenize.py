"""Operation `tokenize`: the tokens of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bertline._convert import Call, Split
from bertline._inputs import read_model, read_texts_or_pairs
from bertline.results import Tokenized
from bertline.v1 import encoder_pb2 as pb


def tokenize(
    inputs: Iterable[str | tuple[str, str]],
    *,
    model: str = "",
    version: str = "",
    timeout: float | None = None,
) -> Call[list[Tokenized]]:
    """Return the tokens of texts or pairs of texts of any length, by the model's tokenizer.

    Args:
        inputs: list of texts, pairs of texts, or both.
        model: name of the model; empty for the default one.
        version: model version; empty for the highest loaded version.
        timeout: maximum seconds for each request; None for the client's timeout.

    Returns:
        One result per input. `Model.max_seq_length` is the number of tokens that the model reads.
    """
    request = partial(pb.TokenizeRequest, model=read_model(model, version))
    return Call("Tokenize", Split(read_texts_or_pairs(inputs), "inputs", request), read_tokenized, timeout)


def read_tokenized(reply: pb.TokenizeReply) -> list[Tokenized]:
    """Return one result per input."""
    return [
        Tokenized(
            ids=tuple(result.ids),
            tokens=tuple(result.tokens),
            offsets=tuple(zip(result.starts, result.ends, strict=True)),
            type_ids=tuple(result.type_ids),
            special=tuple(result.special),
        )
        for result in reply.results
    ]
