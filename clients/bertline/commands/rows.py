"""The commands that ask about rows, of the command line or of files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from bertline._inputs import MAX_COUNT
from bertline.commands.options import JobOptions, TopK
from bertline.jobs.operations import OPERATIONS


class PoolingName(StrEnum):
    """`Pooling` as typer wants it."""

    cls = "cls"
    mean = "mean"


class Dtype(StrEnum):
    """Numbers of vectors in Parquet and .npy."""

    float32 = "float32"
    float16 = "float16"


Texts = Annotated[list[str] | None, typer.Argument(help="Texts; or give files with --input.", show_default=False)]


def embed(
    job: JobOptions,
    texts: Texts = None,
    pooling: Annotated[PoolingName | None, typer.Option(help="Default: what the model was made for.")] = None,
    normalize: Annotated[bool | None, typer.Option(help="Vectors of length 1. Default: as the model was made.")] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, max=MAX_COUNT, help="Keep so many numbers, of models trained so.")
    ] = None,
    windows: Annotated[bool, typer.Option("--windows", help="Read long texts in windows, and average.")] = False,
    dtype: Annotated[Dtype, typer.Option(help="Of the vectors in Parquet and .npy.")] = Dtype.float32,
) -> None:
    """Vectors of texts. A row needs `text`."""
    options = {
        "pooling": pooling and pooling.value,
        "normalize": normalize,
        "dimensions": dimensions,
        "windows": windows,
    }
    job.run(OPERATIONS["embed"], _texts(texts), options, dtype=dtype.value)


def classify(
    job: JobOptions,
    texts: Texts = None,
    top_k: Annotated[int | None, typer.Option(min=1, max=MAX_COUNT, help="Most labels for each. Default: all.")] = None,
) -> None:
    """Labels of texts or pairs of texts. A row needs `text`, and `text_pair` for a pair."""
    job.run(OPERATIONS["classify"], _texts(texts), {"top_k": top_k})


def regress(job: JobOptions, texts: Texts = None) -> None:
    """A number for each text or pair of texts. A row needs `text`, and `text_pair` for a pair."""
    job.run(OPERATIONS["regress"], _texts(texts), {})


def answer(
    job: JobOptions,
    question: Annotated[str | None, typer.Argument(help="A question; or give files with --input.")] = None,
    context: Annotated[str | None, typer.Argument(help="The text that answers it.")] = None,
    top_k: TopK = 1,
) -> None:
    """Answers to questions, out of a context. A row needs `question` and `context`: a text, or a list of texts."""
    if (question is None) != (context is None):
        raise typer.BadParameter("a question needs its context: bertline answer QUESTION CONTEXT")
    given = [{"question": question, "context": context}] if question is not None else None
    job.run(OPERATIONS["answer"], given, {"top_k": top_k})


def tag(
    job: JobOptions,
    texts: Texts = None,
    return_words: Annotated[bool, typer.Option("--words", help="Every word with its tag, too.")] = False,
) -> None:
    """Entities of texts. A row needs `text`: a text, or the list of its words."""
    job.run(OPERATIONS["tag"], _texts(texts), {"return_words": return_words})


def choose(
    job: JobOptions,
    question: Annotated[str | None, typer.Argument(help="A question; or give files with --input.")] = None,
    choices: Annotated[list[str] | None, typer.Argument(help="What may answer it.", show_default=False)] = None,
) -> None:
    """Which of several choices fits a question. A row needs `question` and `choices`, and may have a `context`."""
    if question is not None and not choices:
        raise typer.BadParameter("a question needs its choices: bertline choose QUESTION CHOICE CHOICE")
    job.run(OPERATIONS["choose"], [{"question": question, "choices": choices}] if question is not None else None, {})


def fill_mask(job: JobOptions, texts: Texts = None, top_k: TopK = 5) -> None:
    """The likeliest tokens at each [MASK]. A row needs `text`."""
    job.run(OPERATIONS["fill_mask"], _texts(texts), {"top_k": top_k})


def _texts(texts: list[str] | None) -> list[dict[str, Any]] | None:
    return [{"text": text} for text in texts] if texts else None
