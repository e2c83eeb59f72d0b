"""What one request may hold, checked before anything is tokenised."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from serving.core.errors import InvalidRequestError, Violation
from tasks.base import InvalidExample, InvalidExamplesError, TaskSettings
from tasks.features import Features

CHARS_PER_TOKEN = 250
"""A token of running text has some 4 characters, a word that is one unknown token more than 100; what a model reads of
a text therefore ends long before 250 times as many characters as tokens."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Texts of a request, and characters (code points) of a text."""

    max_texts: int
    max_chars: int

    def check_count(self, count: int, what: str = "inputs", *, field: str = "inputs") -> None:
        """Raise InvalidRequestError where a request has too many inputs, or parts of inputs.

        Args:
            field: of the request, which holds them.
        """
        if count > self.max_texts:
            reason = f"{count} {what} came, a request takes {self.max_texts}; send several requests"
            raise InvalidRequestError(reason, [Violation(field, reason)])

    def check_chars(self, texts: Mapping[str, str]) -> None:
        """Raise InvalidRequestError, naming each text (by its path in the request) of more than `max_chars`."""
        too_long = {path: len(text) for path, text in texts.items() if len(text) > self.max_chars}
        if too_long:
            raise InvalidRequestError(
                violations=[Violation(path, _reason(count, self.max_chars)) for path, count in too_long.items()]
            )

    def free_bytes(self, settings: TaskSettings) -> int:
        """A request of no more bytes than that has no text that is too long."""
        return min(self.max_chars, CHARS_PER_TOKEN * settings.max_seq_length)

    def cut(
        self, examples: Sequence[Any], settings: TaskSettings, *, windowed: frozenset[str], truncate: bool
    ) -> list[Any]:
        """Hold every text to its limit: `max_chars`, and unless it is read in windows, what its model can read.

        Args:
            examples: texts, or dataclasses of texts and of tuples of texts.
            windowed: fields that are read in windows; they are never cut.
            truncate: cut the other fields, instead of refusing them.

        Returns:
            The examples, those that were cut as copies.

        Raises:
            InvalidExamplesError: naming each text that is too long.
        """
        short = self.free_bytes(settings)
        is_cut = truncate and "text" not in windowed
        held = [_cut(example, short, windowed) for example in examples] if is_cut else list(examples)
        invalid = [
            InvalidExample(index, name, _reason(len(text), limit))
            for index, example in enumerate(held)
            for name, text in _texts(example)
            if len(text) > (limit := self.max_chars if name.partition("[")[0] in windowed else short)
        ]
        if invalid:
            raise InvalidExamplesError(invalid)
        return held


def note_cut(windows: Sequence[Features], example: Any, held: Any) -> list[Features]:
    """The features of an example that tell of what `Limits.cut` left out: a text that lost more than white space has
    one more token truncated, as nobody knows how many the rest would have been."""
    pairs = zip(_texts(example), _texts(held), strict=True)
    num_cut = sum(bool(text[len(kept) :].strip()) for (_, text), (_, kept) in pairs)
    first, *others = windows
    return [replace(first, num_truncated=first.num_truncated + num_cut), *others]


def _reason(came: int, fit: int) -> str:
    return f"{came} characters came, {fit} fit"


def _texts(example: Any) -> Iterator[tuple[str, str]]:
    """The texts of an example by the name of their field; those of a tuple by `choices[1]`."""
    if isinstance(example, str):
        yield "text", example
        return
    assert is_dataclass(example)
    for field in fields(example):
        value = getattr(example, field.name)
        if isinstance(value, str):
            yield field.name, value
        elif isinstance(value, tuple):
            yield from ((f"{field.name}[{i}]", item) for i, item in enumerate(value) if isinstance(item, str))


def _cut(value: Any, limit: int, windowed: frozenset[str]) -> Any:
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, tuple):
        return tuple(_cut(item, limit, windowed) for item in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in fields(value) if field.name not in windowed]
    return replace(value, **{name: _cut(getattr(value, name), limit, windowed) for name in names})
