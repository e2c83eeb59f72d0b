"""Limits on one request, checked before its texts are tokenised."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from serving.core.errors import InvalidRequestError, Violation
from tasks.base import InvalidExample, InvalidExamplesError, TaskSettings
from tasks.features import Features

CHARS_PER_TOKEN = 250
"""Upper bound of the characters per token. Running text has about 4; a long word that becomes one unknown token
may have more than 100."""
FIELDS_PER_TEXT, MORE_FIELDS = 4, 1000
"""Maximum number of fields of a request: FIELDS_PER_TEXT times `max_texts`, plus MORE_FIELDS."""
MAX_WORDS = 2**18
"""Maximum number of words of a `Tag` request. An empty word takes two bytes, and a hundred when it is tokenised."""


def _do_nothing() -> None:
    """Check nothing."""


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Limits on the parsing of a request."""

    max_fields: int = 10_000
    """Maximum number of fields, more than any sensible request has. They are counted before they are parsed. Fields
    inside messages that hold no further messages do not count."""
    max_words: int = MAX_WORDS
    """Maximum number of words, which are counted separately."""
    check: Callable[[], None] = _do_nothing
    """Called now and then; raises ExpiredError when nobody waits for the request any more."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Maximum number of texts of a request, and of characters (code points) of a text."""

    max_texts: int
    max_chars: int

    def for_parsing(self, check: Callable[[], None]) -> ParseLimits:
        """Return the limits on the parsing of a request; `check` is that of ParseLimits."""
        return ParseLimits(max_fields=MORE_FIELDS + FIELDS_PER_TEXT * self.max_texts, check=check)

    def check_count(self, count: int, what: str = "inputs", *, field: str = "inputs") -> None:
        """Raise InvalidRequestError if a request has too many inputs, or too many parts of inputs.

        Args:
            count: number of them.
            what: name of what is counted, in the plural.
            field: field of the request that holds them.
        """
        if count > self.max_texts:
            reason = f"{count} {what} came, a request takes {self.max_texts}; send several requests"
            raise InvalidRequestError(reason, [Violation(field, reason)])

    def check_chars(self, texts: Mapping[str, str]) -> None:
        """Raise InvalidRequestError if texts have more than `max_chars` characters.

        Args:
            texts: path in the request -> text.
        """
        too_long = {path: len(text) for path, text in texts.items() if len(text) > self.max_chars}
        if too_long:
            raise InvalidRequestError(
                violations=[Violation(path, _reason(count, self.max_chars)) for path, count in too_long.items()]
            )

    def unchecked_bytes(self, settings: TaskSettings) -> int:
        """Return the size up to which a request needs no check: none of its texts can be too long."""
        return min(self.max_chars, CHARS_PER_TOKEN * settings.max_seq_length)

    def cut(
        self, examples: Sequence[Any], settings: TaskSettings, *, windowed: frozenset[str], truncate: bool
    ) -> list[Any]:
        """Hold every text to its limit: `max_chars`, or what its model can read if it is not read in windows.

        Args:
            examples: texts, or dataclasses of texts and of tuples of texts.
            settings: settings of the task.
            windowed: names of fields that are read in windows. They are never cut.
            truncate: cut the other fields instead of refusing them.

        Returns:
            The examples. Those that were cut are copies.

        Raises:
            InvalidExamplesError: naming each text that is too long.
        """
        max_unwindowed = self.unchecked_bytes(settings)
        if truncate and "text" not in windowed:
            held = [_cut(example, max_unwindowed, windowed) for example in examples]
        else:
            held = list(examples)
        invalid = [
            InvalidExample(index, name, _reason(len(text), limit))
            for index, example in enumerate(held)
            for name, text in _texts(example)
            if len(text) > (limit := self.max_chars if name.partition("[")[0] in windowed else max_unwindowed)
        ]
        if invalid:
            raise InvalidExamplesError(invalid)
        return held


def count_cut(windows: Sequence[Features], example: Any, held: Any) -> list[Features]:
    """Count what `RequestLimits.cut` removed from an example in its features.

    A text that lost more than white space counts as one more truncated token: the removed part was never tokenised.
    """
    pairs = zip(_texts(example), _texts(held), strict=True)
    num_cut = sum(bool(text[len(kept) :].strip()) for (_, text), (_, kept) in pairs)
    first, *others = windows
    return [replace(first, num_truncated=first.num_truncated + num_cut), *others]


def _reason(num_chars: int, limit: int) -> str:
    return f"{num_chars} characters came, {limit} fit"


def _texts(example: Any) -> Iterator[tuple[str, str]]:
    """Yield the texts of an example with the names of their fields; those of a tuple as `choices[1]`."""
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
