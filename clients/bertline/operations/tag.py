"""Operation `tag`: the entities in texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from bertline._convert import Call, Split
from bertline._inputs import by_path, check_texts, read_flag, read_items
from bertline.operations.base import SPAN, STRINGS, Operation, check_finite, request_of, scored, sum_of_scores
from bertline.results import Entity, TaggedWord, Tagging, Usage
from bertline.v1 import encoder_pb2 as pb


def tag(
    inputs: Iterable[str | Sequence[str]],
    *,
    return_words: bool = False,
    model: str = "",
    version: str = "",
    truncate: bool | None = None,
    timeout: float | None = None,
    usage: Usage | None = None,
) -> Call[list[Tagging]]:
    """Return the entities in texts: people, places, or other types that the model was trained on.

    Args:
        inputs: list of texts of any length, lists of words, or both.
        return_words: also return every word with its tag.

    Returns:
        One tagging per input.
    """
    words = read_flag("return_words", return_words)
    request = request_of(pb.TagRequest, model, version, truncate, return_words=words)
    return Call("Tag", Split(_read_inputs(inputs), "inputs", request), read_taggings, timeout, usage)


def _read_inputs(values: Iterable[str | Sequence[str]]) -> list[pb.TagInput]:
    """Return texts and lists of words as messages."""
    items: list[Any] = read_items(values, "inputs")
    check_texts([by_path("words", item) if isinstance(item, tuple | list) else {"text": item} for item in items])
    return [pb.TagInput(words=item) if isinstance(item, tuple | list) else pb.TagInput(text=item) for item in items]


def read_taggings(reply: pb.TagReply) -> list[Tagging]:
    """Return one result per input."""
    check_finite(sum_of_scores(result.entities) + sum_of_scores(result.words) for result in reply.results)
    return [
        Tagging(
            entities=tuple(Entity(item.start, item.end, item.text, item.label, item.score) for item in result.entities),
            words=tuple(TaggedWord(word.start, word.end, word.tag, word.score) for word in result.words),
        )
        for result in reply.results
    ]


def _columns(result: Tagging) -> dict[str, Any]:
    return {"entities": scored(result.entities), **({"words": scored(result.words)} if result.words else {})}


OPERATION = Operation(
    call=tag,
    task="tagging",
    needed={"text": STRINGS},
    result=_columns,
    types={
        "entities": [{**SPAN, "label": str, "score": float}],
        "words": [{"start": int, "end": int, "tag": str, "score": float}],
    },
)
