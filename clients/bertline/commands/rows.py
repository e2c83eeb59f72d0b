"""Commands that process rows, from the command line or from files."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from bertline.commands.options import JobOptions, TopK, count_option
from bertline.operations import OPERATIONS
from bertline.operations.base import InputType
from bertline.operations.embed import Pooling, VectorFormat

PromptName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Put this prompt of the model before each text; '' for none. Default: the model's default prompt.",
    ),
]
InputTypeOption = Annotated[
    InputType | None,
    typer.Option(help="Put the model's prompt for queries or documents before each text, if it has one."),
]
Space = Annotated[
    str | None,
    typer.Option(
        metavar="SPACE",
        help="Refuse vectors of another space than this one, 16 hexadecimal digits in the metadata of earlier outputs.",
    ),
]
Texts = Annotated[list[str] | None, typer.Argument(help="Texts. Give files with --input.", show_default=False)]
Question = Annotated[str | None, typer.Argument(help="Question. Give files with --input.", show_default=False)]


def embed(
    job: JobOptions,
    texts: Texts = None,
    pooling: Annotated[
        Pooling | None, typer.Option(help="Check that the model uses this pooling. Default: the model's.")
    ] = None,
    normalize: Annotated[
        bool | None, typer.Option(help="Scale vectors to length 1, or leave them. Default: the model's setting.")
    ] = None,
    dimensions: Annotated[
        int | None, count_option("Length of the vectors, for models trained for it (Matryoshka).")
    ] = None,
    windows: Annotated[
        bool,
        typer.Option(
            "--windows", help="Split long texts into windows, each with the prompt, and average their vectors."
        ),
    ] = False,
    prompt_name: PromptName = None,
    input_type: InputTypeOption = None,
    dtype: Annotated[
        VectorFormat,
        typer.Option(
            help="Type of the vectors. float16: in Parquet and .npy; int8: numbers divided by the scales of their "
            "dimensions (see Model.int8_scales of the Python client); binary: signs, packed into bytes."
        ),
    ] = "float32",
    space: Space = None,
) -> None:
    """Embed texts as vectors. Rows need `text`."""
    options = {
        "pooling": pooling,
        "normalize": normalize,
        "dimensions": dimensions,
        "windows": windows,
        "prompt_name": prompt_name,
        "input_type": input_type,
        "format": dtype if dtype in ("int8", "binary") else "float32",
    }
    job.run(OPERATIONS["embed"], _rows(texts), options, dtype="uint8" if dtype == "binary" else dtype, space=space)


def embed_sparse(
    job: JobOptions,
    texts: Texts = None,
    top_k: Annotated[int | None, count_option("Maximum number of weights for each text. Default: the model's.")] = None,
    return_tokens: Annotated[
        bool, typer.Option("--tokens", help="Also return the tokens, not only their ids.")
    ] = False,
    prompt_name: PromptName = None,
    input_type: InputTypeOption = None,
    space: Space = None,
) -> None:
    """Embed texts as weights of tokens of the vocabulary (SPLADE). Rows need `text`."""
    options = {
        "top_k": top_k,
        "return_tokens": return_tokens,
        "prompt_name": prompt_name,
        "input_type": input_type,
    }
    job.run(OPERATIONS["embed_sparse"], _rows(texts), options, space=space)


def embed_tokens(
    job: JobOptions,
    texts: Texts = None,
    input_type: InputTypeOption = None,
    prompt_name: PromptName = None,
    space: Space = None,
) -> None:
    """Embed texts as a vector for each token (ColBERT). Rows need `text`."""
    options = {"input_type": input_type, "prompt_name": prompt_name}
    job.run(OPERATIONS["embed_tokens"], _rows(texts), options, space=space)


def classify(
    job: JobOptions,
    texts: Texts = None,
    top_k: Annotated[
        int | None,
        count_option(
            "Maximum number of labels for each input, besides selected ones of a multi-label model. Default: all."
        ),
    ] = None,
) -> None:
    """Label texts or pairs of texts. Rows need `text`, and `text_pair` for pairs."""
    job.run(OPERATIONS["classify"], _rows(texts), {"top_k": top_k})


def regress(job: JobOptions, texts: Texts = None) -> None:
    """Score texts or pairs of texts with a number. Rows need `text`, and `text_pair` for pairs."""
    job.run(OPERATIONS["regress"], _rows(texts), {})


def answer(
    job: JobOptions,
    question: Question = None,
    context: Annotated[str | None, typer.Argument(help="Text that holds the answer.", show_default=False)] = None,
    top_k: TopK = 1,
) -> None:
    """Answer questions from a context. Rows need `question` and `context`, a text or a list of texts."""
    if (question is None) != (context is None):
        raise typer.BadParameter("a question needs a context: bertline answer QUESTION CONTEXT")
    rows = [{"question": question, "context": context}] if question is not None else None
    job.run(OPERATIONS["answer"], rows, {"top_k": top_k})


def rerank(
    job: JobOptions,
    query: Annotated[str | None, typer.Argument(help="Query. Give files with --input.", show_default=False)] = None,
    documents: Annotated[list[str] | None, typer.Argument(help="Texts to rank.", show_default=False)] = None,
    top_n: Annotated[int | None, count_option("Maximum number of documents per query. Default: all.")] = None,
    label: Annotated[
        str,
        typer.Option(
            help="Label of a classification model that means that a document fits; the labels 0 and 1, and LABEL_0 and "
            "LABEL_1, need none."
        ),
    ] = "",
    raw_scores: Annotated[
        bool, typer.Option("--raw-scores", help="Return scores before the model's activation function.")
    ] = False,
) -> None:
    """Rank documents by how well they fit a query. Rows need `query` and `documents`, a list of texts."""
    if query is not None and not documents:
        raise typer.BadParameter("a query needs documents: bertline rerank QUERY DOCUMENT DOCUMENT")
    options = {"top_n": top_n, "label": label, "raw_scores": raw_scores}
    job.run(OPERATIONS["rerank"], [{"query": query, "documents": documents}] if query is not None else None, options)


def tag(
    job: JobOptions,
    texts: Texts = None,
    return_words: Annotated[bool, typer.Option("--words", help="Also return every word with its tag.")] = False,
) -> None:
    """Find entities in texts. Rows need `text`, a text or the list of its words."""
    job.run(OPERATIONS["tag"], _rows(texts), {"return_words": return_words})


def choose(
    job: JobOptions,
    question: Question = None,
    choices: Annotated[list[str] | None, typer.Argument(help="Choices.", show_default=False)] = None,
) -> None:
    """Choose the best of several answers. Rows need `question` and `choices`, and may have `context`."""
    if question is not None and not choices:
        raise typer.BadParameter("a question needs choices: bertline choose QUESTION CHOICE CHOICE")
    job.run(OPERATIONS["choose"], [{"question": question, "choices": choices}] if question is not None else None, {})


def zero_shot(
    job: JobOptions,
    texts: Texts = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="LABEL", help="Label to choose from, several times.", show_default=False),
    ] = None,
    template: Annotated[
        str, typer.Option(help="Sentence with {}, which stands for the label. Default: This example is {}.")
    ] = "",
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="A text may have any number of labels: judge each on its own.")
    ] = False,
    top_k: Annotated[int | None, count_option("Maximum number of labels. Default: all.")] = None,
) -> None:
    """Choose among labels of your own, by a model for natural language inference. Rows need `text`."""
    if not labels:
        raise typer.BadParameter("name the labels: bertline zero-shot --label sports --label politics TEXT")
    options = {"labels": labels, "template": template, "multi_label": multi_label, "top_k": top_k}
    job.run(OPERATIONS["zero_shot"], _rows(texts), options)


def fill_mask(job: JobOptions, texts: Texts = None, top_k: TopK = 5) -> None:
    """Predict the most likely tokens at each mask, [MASK] or <mask> by the model. Rows need `text`."""
    job.run(OPERATIONS["fill_mask"], _rows(texts), {"top_k": top_k})


def _rows(texts: list[str] | None) -> list[dict[str, Any]] | None:
    return [{"text": text} for text in texts] if texts else None
