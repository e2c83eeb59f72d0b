"""Examples out of the data that people have: tables (`training.data.tables`), SQuAD JSON, CoNLL, text for masked LM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tasks.classification import ClassificationExample
from tasks.files import sha256
from tasks.masked_lm import ClozeExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import Regression, RegressionExample, RegressionSettings
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tasks.tags import find_odd_tag
from tasks.tokenizer import Tokenizer, Tokens
from training.data.conll import is_conll_column, read_conll
from training.data.examples import Examples, encode_examples
from training.data.formats import other_task
from training.data.hub import hub_digest, is_hub
from training.data.pretraining import random_generator
from training.data.tables import TABLES, WITH_LISTS, Row, kind_of, read_rows
from training.text.documents import parse_json, read_documents, read_lines, suffix_of

MAX_PASSAGE_TOKENS = 96
"""Of a text in which masked LM is to fill gaps."""
MAX_NUMBER = 1e12
"""Of a label: gradients of its squared error, and their norm, are still numbers in float32."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Where a table holds what."""

    text: str = "text"
    """A text, or the first of a pair."""
    text_pair: str = "text_pair"
    """The second text of a pair; left out where the table has no column of this usual name."""
    negative: str = "negative"
    """Contrastive training: a text that is unlike `text`; left out as `text_pair` is."""
    label: str = "label"
    """A class, a number (regression), or the number of the right choice, from 0."""
    tokens: str = "tokens"
    """Tagging: the words of a sentence; in CoNLL a column by its number from 0, or by UD's name, as `form`."""
    tags: str = "tags"
    """Tagging: a tag for each word; in CoNLL as `tokens`, or UD's `upos`, `xpos` and so on."""
    context: str = "context"
    """Multiple choice: what the choices go on from; left out as `text_pair` is. Spans: where answers stand."""
    question: str = "question"
    """Multiple choice: what stands before each choice; left out as `text_pair` is. Spans: what is asked."""
    choices: str = "choices"
    """Multiple choice: a list of texts."""
    header: bool = True
    """Whether the first line of a TSV or CSV names the columns; otherwise they are called 0, 1, 2 and so on."""

    @property
    def given(self) -> list[str]:
        """Those that are not called as usual: they must be there."""
        return [
            getattr(self, item.name)
            for item in fields(self)
            if item.name != "header" and getattr(self, item.name) != item.default
        ]


def dev_columns(recipe: Mapping[str, Any]) -> Columns:
    """Of the dev data of a run, out of its recipe; what is not known any more is left out."""
    named = recipe.get("dev_columns", recipe.get("columns", {}))
    return Columns(**{item.name: named[item.name] for item in fields(Columns) if item.name in named})


def columns_there(paths: Sequence[Path], columns: Columns) -> Columns:
    """These columns as far as some tables have them; the others as they are usually called.

    Raises:
        ValueError: as `read_rows`.
    """
    usual = Columns()
    if columns == usual:
        return usual
    tables = [path for path in paths if kind_of(path) in TABLES]
    rows = [row for path in tables for _, row in read_rows(path, header=columns.header)]
    if not columns.header and rows and usual.text in rows[0].values():  # there is a header
        return usual
    there = {name for row in rows for name in row}
    if len(tables) < len(paths):
        there |= set(filter(is_conll_column, (columns.tokens, columns.tags)))
    found = {name: column for name, column in asdict(columns).items() if column in there}
    return Columns(**found | {"header": columns.header})


def read_examples(
    task: str,
    paths: Sequence[Path],
    *,
    columns: Columns,
    tokenizer: Tokenizer,
    max_passage_tokens: int = MAX_PASSAGE_TOKENS,
) -> Examples:
    """The examples of one task in some files or data sets of the hub.

    Args:
        max_passage_tokens: for masked-lm, how long passages of the text may be.

    Raises:
        ValueError: naming file, line and key of what is missing or malformed, and the task that reads such a file if
            another does; or files without examples.
    """
    if task in READERS:
        kinds = WITH_LISTS if task in ("spans", "tagging") else TABLES
        given = [name for name in columns.given if task != "tagging" or not is_conll_column(name)]
        if given and not any(kind_of(path) in kinds for path in paths):
            raise ValueError(f"`{paths[0]}` has no columns, of which `{given[0]}` could be one (--columns...)")
        return _all_of(paths, lambda path: _read(task, path, columns))
    if task != "masked-lm":
        raise ValueError(f"task `{task}` has no labelled data")
    if table := next((path for path in paths if suffix_of(path) in (".tsv", ".csv", ".json")), None):
        raise ValueError(f"`{table}` is a table; the checkpoint is a masked-lm, whose data are running text")

    def passages(path: Path) -> Examples:
        found = read_cloze(path, tokenizer, max_tokens=max_passage_tokens)
        return Examples((f"`{path}`", example) for example in found)

    return _all_of(paths, passages)


def _read(task: str, path: Path, columns: Columns) -> Examples:
    try:
        return READERS[task](path, columns)
    except ValueError as error:
        raise ValueError(f"{error}{other_task(path, task)}") from error


def read_similarities(paths: Sequence[Path], *, columns: Columns, tokenizer: Tokenizer) -> Examples:
    """Pairs of texts out of tables, with numbers that say how alike they are; as examples of regression.

    Raises:
        ValueError: as `read_examples`; also for a text without its pair, or without a single token.
    """
    pairs = _all_of(paths, lambda path: read_regression(path, columns, need_pairs=True))
    encode_examples(Regression(tokenizer, RegressionSettings()), pairs)
    return pairs


def _all_of(paths: Sequence[Path], read: Callable[[Path], Examples]) -> Examples:
    examples = Examples(item for path in paths for item in read(path).placed())
    if not examples:
        raise ValueError(f"no examples in {', '.join(f'`{path}`' for path in paths)}")
    return examples


def source_digest(path: Path) -> str:
    """SHA-256 of a file, or of the rows of a data set of the hub."""
    return hub_digest(path) if is_hub(path) else sha256(path)


def source_names(paths: Sequence[Path]) -> list[str]:
    """What files and data sets of the hub are called in records: files without folders, or where they would share a
    name, by as much of the path as tells them apart."""
    return [_name_among(path, paths) for path in paths]


def _name_among(path: Path, paths: Sequence[Path]) -> str:
    others = [other for other in paths if other != path]
    sizes = () if is_hub(path) else range(1, len(path.parts))
    tails = (path.parts[-size:] for size in sizes)
    apart = (tail for tail in tails if all(other.parts[-len(tail) :] != tail for other in others))
    return str(Path(*next(apart, (path,))))


def _rows(path: Path, columns: Columns) -> Iterator[Row]:
    """The rows of a table, each with the columns that were given."""
    given = columns.given
    for place, row in read_rows(path, header=columns.header):
        for name in given:
            if name not in row:
                raise ValueError(_missing(place, row, name))
        yield place, row


def read_classification(path: Path, columns: Columns) -> Examples:
    """Texts or pairs with labels out of a table."""
    examples = Examples()
    for place, row in _rows(path, columns):
        text, pair = _string(place, row, columns.text), _optional_string(place, row, columns.text_pair)
        label = _filled(place, row, columns.label)
        if not isinstance(label, str | int | float):
            raise ValueError(f"{place}: `{columns.label}` must be a string or a number: `{label}`")
        examples.add(place, ClassificationExample(text=text, text_pair=pair, label=str(label).strip()))
    _check_numbers(examples)
    return examples


def _check_numbers(examples: Examples) -> None:
    """Check that no whole number is written in two ways, which would be two labels."""
    names: dict[float, str] = {}
    for place, example in examples.placed():
        number = to_number(example.label)
        if number % 1 == 0 and (name := names.setdefault(number, example.label)) != example.label:
            raise ValueError(f"{place}: label `{example.label}` is `{name}` in other rows; write it in one way")


def read_regression(path: Path, columns: Columns, *, need_pairs: bool = False) -> Examples:
    """Texts or pairs with numbers out of a table."""
    examples, read_pair = Examples(), _string if need_pairs else _optional_string
    for place, row in _rows(path, columns):
        text, pair = _string(place, row, columns.text), read_pair(place, row, columns.text_pair)
        examples.add(place, RegressionExample(text=text, text_pair=pair, label=_number(place, row, columns.label)))
    return examples


def read_texts(path: Path, columns: Columns) -> Examples:
    """The texts of a table, or, under any other name but .json, the lines of a file that are not blank."""
    if kind_of(path) in (*TABLES, ".json"):
        return Examples((place, _string(place, row, columns.text)) for place, row in _rows(path, columns))
    lines = enumerate(read_lines(path), start=1)
    return Examples((f"`{path}`, line {number}", line) for number, line in lines if line.strip())


def read_positives(path: Path, columns: Columns, min_label: float | None = None) -> Examples:
    """Each text of a table with its pair, and with its negative where there is such a column.

    Args:
        min_label: leave out pairs with a lower label; None for all pairs, whatever their label.
    """
    examples = Examples()
    for place, row in _rows(path, columns):
        if min_label is None or _number(place, row, columns.label) >= min_label:
            names = [columns.text, columns.text_pair] + [columns.negative] * (columns.negative in row)
            examples.add(place, tuple(_string(place, row, name) for name in names))
    return examples


def read_multiple_choice(path: Path, columns: Columns) -> Examples:
    """Choices out of a table with lists in column `choices`, or with SWAG's columns (sent1, sent2, ending0 ...)."""
    examples = Examples()
    for place, row in _rows(path, columns):
        if "ending0" in row:
            endings = itertools.takewhile(row.__contains__, (f"ending{number}" for number in itertools.count()))
            row |= {columns.choices: [row[name] for name in endings]}
            row |= {columns.context: row.get("sent1"), columns.question: row.get("sent2")}
        context, question = (_optional_string(place, row, name) for name in (columns.context, columns.question))
        choices = _strings(place, row, columns.choices)
        label = to_number(_filled(place, row, columns.label))
        if label not in range(len(choices)):  # pandas writes 1 as 1.0 where other rows lack it
            raise ValueError(
                f"{place}: `{columns.label}` must be the number of a choice, from 0: `{row[columns.label]}`"
            )
        example = MultipleChoiceExample(
            choices=choices,
            context=context or "",
            question=question or "",
            label=int(label),
            id=str(row.get("id", "")),
        )
        examples.add(place, example)
    return examples


def read_tagging(path: Path, columns: Columns) -> Examples:
    """Sentences out of a table with lists in columns `tokens` and `tags`, or, under any other name, a CoNLL file."""
    is_table = kind_of(path) in (*WITH_LISTS, ".csv", ".json")
    if is_table:
        examples = _tagged_rows(path, columns)
    else:
        tokens, tags = (name if is_conll_column(name) else None for name in (columns.tokens, columns.tags))
        examples = read_conll(path, tokens=tokens, tags=tags)
    if odd := find_odd_tag({tag for example in examples for tag in example.tags}):
        place = next(place for place, example in examples.placed() if odd[0] in example.tags)
        raise ValueError(f"{place}: tag `{odd[0]}`: {odd[1]}")
    return examples


def _tagged_rows(path: Path, columns: Columns) -> Examples:
    examples = Examples()
    for place, row in _rows(path, columns):
        words, tags = (_strings(place, row, name) for name in (columns.tokens, columns.tags))
        if len(words) != len(tags):
            raise ValueError(f"{place}: {len(words)} `{columns.tokens}`, but {len(tags)} `{columns.tags}`")
        if not all(map(str.strip, tags)):
            raise ValueError(f"{place}: one of `{columns.tags}` is empty")
        examples.add(place, TaggingExample(words=words, tags=tags))
    return examples


def _optional_string(place: str, row: Mapping[str, Any], name: str) -> str | None:
    value = row.get(name)
    if not isinstance(value, str | None):
        raise ValueError(f"{place}: `{name}` must be a string: `{value}`")
    return value


def _string(place: str, row: Mapping[str, Any], name: str) -> str:
    _filled(place, row, name)
    return _optional_string(place, row, name) or ""


def _number(place: str, row: Mapping[str, Any], name: str) -> float:
    value = _filled(place, row, name)
    number = to_number(value)
    if not math.isfinite(number):
        raise ValueError(f"{place}: `{name}` must be a number: `{str(value)[:60]}`")
    if abs(number) > MAX_NUMBER:
        raise ValueError(f"{place}: `{name}` is beyond ±{MAX_NUMBER:g}: `{value}`; scale all of them down")
    return number


def to_number(value: Any) -> float:
    """NaN for what is no number; underscores and truth values, which are numbers to Python, are none in data."""
    try:
        return math.nan if isinstance(value, bool) or "_" in str(value) else float(value)
    except (TypeError, ValueError):
        return math.nan
    except OverflowError:  # a whole number with more digits than a float can have
        return math.inf


def _filled(place: str, row: Mapping[str, Any], name: str) -> Any:
    value = row.get(name)
    if value is None or value != value or not str(value).strip():  # a cell without a number is read as NaN
        raise ValueError(_missing(place, row, name))
    return value


def _missing(place: str, row: Mapping[str, Any], name: str) -> str:
    is_usual = name not in row and name in {item.name for item in fields(Columns)}
    hint = f"; name it with --columns.{name.replace('_', '-')}" if is_usual else ""
    return f"{place}: no `{name}` (there: {', '.join(f'`{there}`' for there in row)}){hint}"


def _strings(place: str, row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _filled(place, row, name)
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{place}: `{name}` must be a list of strings: `{str(values)[:60]}`")
    return tuple(values)


def read_spans(path: Path, columns: Columns | None = None) -> Examples:
    """Questions of a SQuAD v1.1 or v2.0 JSON file, or of a table with SQuAD's columns as the hub has them."""
    named = columns or Columns()
    if kind_of(path) in WITH_LISTS:
        return Examples((place, _span_row(place, row, named)) for place, row in _rows(path, named))
    data = parse_json("\n".join(read_lines(path)), f"`{path}`, which should be in SQuAD's format")
    try:
        examples = [
            _span_example(paragraph, question)
            for article in _value(data, "data", list)
            for paragraph in _value(article, "paragraphs", list)
            for question in _value(paragraph, "qas", list)
        ]
    except ValueError as error:
        raise ValueError(f"`{path}` is not in SQuAD's format: {error}") from error
    return Examples((f"`{path}`, question `{example.id}`", example) for example in examples)


def _span_row(place: str, row: Mapping[str, Any], columns: Columns) -> SpanExample:
    """A question whose answers are an object of two lists, `text` and `answer_start`."""
    try:
        found = _NO_ANSWERS if _is_impossible(row) else _value(row, "answers", dict)
        texts, starts = (_value(found, name, list) for name in ("text", "answer_start"))
        if len(texts) != len(starts):
            raise ValueError(f"{len(texts)} answers, but {len(starts)} 'answer_start'")
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts, strict=True)]
        context, question = (_value(row, name, str) for name in (columns.context, columns.question))
        return _span_example({"context": context}, {**row, "question": question, "answers": answers})
    except ValueError as error:
        raise ValueError(f"{place} is not in SQuAD's format: {error}") from error


def _span_example(paragraph: Any, question: Any) -> SpanExample:
    try:
        answers = _span_answers(question)
        return SpanExample(
            question=_value(question, "question", str),
            context=_value(paragraph, "context", str),
            answers=tuple(answer["text"] for answer in answers),
            answer_start=_value(answers[0], "answer_start", int) if answers else -1,
            id=str(_value(question, "id", object)),
        )
    except ValueError as error:
        raise ValueError(f"{error}, in question `{str(question)[:60]}...`") from error


_NO_ANSWERS: dict[str, list[Any]] = {"text": [], "answer_start": []}


def _span_answers(question: Any) -> list[Any]:
    """The answers but those that are blank at -1; none of a question that is impossible, whatever stands beside it."""
    if _is_impossible(question):
        return []
    answers = _value(question, "answers", list)
    answers = [answer for answer in answers if _value(answer, "text", str).strip() or answer.get("answer_start") != -1]
    if not answers and question.get("is_impossible") is not None:
        raise ValueError("'is_impossible' is false, but there is no answer")
    return answers


def _is_impossible(question: Any) -> bool:
    value = question.get("is_impossible") if isinstance(question, Mapping) else None
    if value not in (None, True, False):
        raise ValueError(f"'is_impossible' must be true or false, not `{str(value)[:60]}`")
    return bool(value)


_KINDS = {list: "a list", dict: "an object", str: "a string", int: "a whole number"}


def _value(record: Any, key: str, kind: type) -> Any:
    if not isinstance(record, dict):
        raise ValueError(f"expected an object with {key!r}, not `{str(record)[:60]}`")
    if key not in record:
        raise ValueError(f"it lacks {key!r}")
    if not isinstance(record[key], kind):
        raise ValueError(f"{key!r} must be {_KINDS[kind]}, not `{str(record[key])[:60]}`")
    return record[key]


def read_cloze(
    path: Path, tokenizer: Tokenizer, *, max_tokens: int = MAX_PASSAGE_TOKENS, max_examples: int = 1000
) -> list[ClozeExample]:
    """Passages of a text file as `cloze_examples`."""
    return list(itertools.islice(cloze_examples(_passages(path, tokenizer, max_tokens), tokenizer), max_examples))


def cloze_examples(texts: Iterable[str], tokenizer: Tokenizer) -> Iterator[ClozeExample]:
    """Texts with 15% of their tokens masked, the same at each reading; those with none to mask, or with masks of their
    own, are left out.

    Only words and signs that are one token each are masked, so that the text with [MASK] in their places says it all.
    """
    number = 0
    for text in texts:
        tokens = tokenizer.tokenize([text])[0]
        whole = [index for index in range(len(tokens)) if _is_whole(tokenizer, tokens, index)]
        rng = random_generator(0, 0, stream=7, index=number)
        chosen = sorted(rng.permutation(whole)[: max(1, round(0.15 * len(tokens)))])
        if not chosen or tokenizer.mask_id in tokens.ids:
            continue
        number += 1
        hidden = tuple(tokenizer.token(int(tokens.ids[index])) for index in chosen)
        for index in reversed(chosen):
            start, end = tokens.offsets[index]
            text = f"{text[:start]}[MASK]{text[end:]}"
        yield ClozeExample(text=text, tokens=hidden)


def _is_whole(tokenizer: Tokenizer, tokens: Tokens, index: int) -> bool:
    """Whether a token is a word or sign of its own, and known."""
    is_first = not tokenizer.token(int(tokens.ids[index])).startswith("##")
    is_last = index + 1 == len(tokens) or not tokenizer.token(int(tokens.ids[index + 1])).startswith("##")
    return is_first and is_last and int(tokens.ids[index]) != tokenizer.unk_id


def _passages(path: Path, tokenizer: Tokenizer, max_tokens: int) -> Iterator[str]:
    """Runs of whole sentences of one document, as long as fit."""
    for document in read_documents(path):
        passage: list[str] = []
        size = 0
        for sentence, tokens in zip(document, tokenizer.tokenize(document), strict=True):
            if passage and size + len(tokens) > max_tokens:
                yield " ".join(passage)
                passage, size = [], 0
            if len(tokens) <= max_tokens:
                passage.append(sentence)
                size += len(tokens)
        if passage:
            yield " ".join(passage)


READERS: dict[str, Callable[[Path, Columns], Examples]] = {
    "classification": read_classification,
    "spans": read_spans,
    "regression": read_regression,
    "multiple-choice": read_multiple_choice,
    "tagging": read_tagging,
}
"""How the labelled data of each task are read."""
