"""Operation `tokenize`: the tokens of texts and pairs of texts."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from bertline._convert import Call, Split, join_lists
from bertline._inputs import read_model, read_texts_or_pairs
from bertline.results import Tokenized
from bertline.v1 import encoder_pb2 as pb


def tokenize_call(inputs: Iterable[str | tuple[str, str]], model: str, version: str) -> Call[list[Tokenized]]:
    """See `Client.tokenize`."""
    request = partial(pb.TokenizeRequest, model=read_model(model, version))
    return Call("Tokenize", Split(read_texts_or_pairs(inputs), "inputs", request), read_tokenized, join_lists)


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
