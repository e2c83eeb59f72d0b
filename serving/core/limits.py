"""Limits of a request: its fields, inputs, words and characters, which are checked before it is tokenized."""

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
"""Maximum number of words of a `Tag` request. An empty word has two bytes on the wire, and a hundred in memory."""


@dataclass(frozen=True, slots=True)
class ParseLimits:
    """Limits on the parsing of a request."""

    max_fields: int = 10_000
    """Maximum number of fields, more than any sensible request has. They are counted before they are parsed. Fields
    inside messages that hold no further messages do not count."""
    max_words: int = MAX_WORDS
    """Maximum number of words, which are counted separately."""
    check: Callable[[], None] = lambda: None
    """Called regularly; raises ExpiredError when nobody waits for the request any more."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Maximum number of texts of a request, and of characters (code points) of a text."""

    max_texts: int
    max_chars: int

    @property
    def max_fields(self) -> int:
        """Maximum number of fields of a request, nested ones included."""
        return MORE_FIELDS + FIELDS_PER_TEXT * self.max_texts

    def for_parsing(self, check: Callable[[], None]) -> ParseLimits:
        """Return the limits on the parsing of a request; `check` is that of ParseLimits."""
        return ParseLimits(max_fields=self.max_fields, check=check)

    def check_count(self, count: int, what: str = "inputs", *, field: str = "inputs") -> None:
        """Raise InvalidRequestError if a request has more than `max_texts` inputs, or parts of inputs.

        Args:
            count: number of items.
            what: name of the items for the message, in the plural.
            field: field of the request that holds the items.
        """
        if count > self.max_texts:
            reason = f"too many {what}: `{count}` (maximum `{self.max_texts}`); send several requests"
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
        """Return the maximum bytes of a request whose texts need no check, since none of them can be too long."""
        return min(self.max_chars, _max_unwindowed(settings))

    def enforce_lengths(
        self, examples: Sequence[Any], settings: TaskSettings, *, windowed: frozenset[str], truncate: bool
    ) -> list[Any]:
        """Check the length of each text: `max_chars`, and CHARS_PER_TOKEN for each token if it is not windowed.

        Args:
            examples: strings, or dataclasses whose fields are strings or tuples of strings.
            settings: settings of the task.
            windowed: names of fields that are split into windows; these are never cut.
            truncate: True to cut the other fields to CHARS_PER_TOKEN for each token instead of refusing them.

        Returns:
            The examples; cut ones are copies.

        Raises:
            InvalidExamplesError: naming each text that is too long.
        """
        is_cut = truncate and "text" not in windowed
        invalid = []
        for index, example in enumerate(examples):
            for name, text in _texts(example):
                may_be_longer = is_cut or name.partition("[")[0] in windowed
                limit = self.max_chars if may_be_longer else self.unchecked_bytes(settings)
                if len(text) > limit:
                    remedy = " or set `truncate`" if len(text) <= self.max_chars else ""
                    invalid.append(InvalidExample(index, name, _reason(len(text), limit) + remedy))
        if invalid:
            raise InvalidExamplesError(invalid)
        return [_cut(example, _max_unwindowed(settings), windowed) if is_cut else example for example in examples]


def count_cut(windows: Sequence[Features], example: Any, cut_example: Any) -> list[Features]:
    """Return the features of an example, with what `RequestLimits.enforce_lengths` cut in `num_truncated`.

    A text that lost more than white space counts as one more truncated token: the removed part was never tokenized.
    """
    pairs = zip(_texts(example), _texts(cut_example), strict=True)
    num_cut = sum(bool(text[len(kept) :].strip()) for (_, text), (_, kept) in pairs)
    first, *others = windows
    return [replace(first, num_truncated=first.num_truncated + num_cut), *others]


def _max_unwindowed(settings: TaskSettings) -> int:
    return CHARS_PER_TOKEN * settings.max_seq_length


def _reason(num_chars: int, limit: int) -> str:
    return f"text too long: `{num_chars}` characters (maximum `{limit}`); shorten it"


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
