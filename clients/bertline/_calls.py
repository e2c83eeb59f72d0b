"""Calls of the client's methods: checked arguments, requests, and readers of the replies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from bertline._convert import Call, Request, Split, join_lists, join_vectors, only, split_documents
from bertline._inputs import (
    read_choices,
    read_count,
    read_flag,
    read_items,
    read_model,
    read_option,
    read_questions,
    read_rankings,
    read_texts,
    read_texts_or_pairs,
    read_texts_or_words,
)
from bertline._protos import SERVING, HealthRequest
from bertline._replies import (
    DTYPES,
    merge_rankings,
    read_answers,
    read_choice_results,
    read_classifications,
    read_fills,
    read_model_info,
    read_ranked,
    read_sparse_vectors,
    read_taggings,
    read_token_vectors,
    read_tokenized,
    read_values,
    read_vectors,
    read_zero_shot,
)
from bertline.results import (
    Answer,
    Choice,
    Classification,
    MaskFill,
    Model,
    Ranking,
    SparseVector,
    Tagging,
    Tokenized,
    TokenVectors,
)
from bertline.v1 import encoder_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name
"""Service name of the server's health. Appended `/NAME` and `/NAME/VERSION` give the health of models."""

MAX_PAIRS = 1024
"""Maximum number of pairs of text and label in one request of `zero_shot`."""
VectorFormat = Literal["float32", "float16", "int8", "binary"]
TokenFormat = Literal["float32", "float16"]
InputType = Literal["query", "document"]
Pooling = Literal["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


def embed_call(
    texts: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    dimensions: int | None = None,
    windows: bool = False,
    window_stride: int | None = None,
    prompt_name: str | None = None,
    input_type: InputType | None = None,
    format: VectorFormat = "float32",
) -> Call[np.ndarray]:
    """See `Client.embed`."""
    if pooling is not None and pooling not in get_args(Pooling):
        raise ValueError(f"unknown pooling: `{pooling}` (one of: {', '.join(get_args(Pooling))})")
    if format not in get_args(VectorFormat):
        raise ValueError(f"unknown format: `{format}` (one of: {', '.join(get_args(VectorFormat))})")
    request = partial(
        pb.EmbedRequest,
        model=read_model(model, version),
        truncate=read_flag("truncate", truncate),
        pooling=f"POOLING_{pooling.upper()}" if pooling else None,
        normalize=read_flag("normalize", normalize),
        dimensions=read_count("dimensions", dimensions),
        windows=read_flag("windows", windows),
        window_stride=read_count("window_stride", window_stride),
        **_prompt_fields(prompt_name, input_type),
        format=None if format == "float32" else f"VECTOR_FORMAT_{format.upper()}",
    )
    read = partial(read_vectors, normalized=bool(normalize), format=format)
    join = partial(join_vectors, dtype=DTYPES[format])
    return Call("Embed", Split(read_texts(texts), "texts", request), read, join)


def embed_sparse_call(
    texts: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int | None = None,
    return_tokens: bool = False,
    prompt_name: str | None = None,
    input_type: InputType | None = None,
) -> Call[list[SparseVector]]:
    """See `Client.embed_sparse`."""
    request = partial(
        pb.EmbedSparseRequest,
        model=read_model(model, version),
        truncate=read_flag("truncate", truncate),
        top_k=read_count("top_k", top_k),
        return_tokens=read_flag("return_tokens", return_tokens),
        **_prompt_fields(prompt_name, input_type),
    )
    return Call("EmbedSparse", Split(read_texts(texts), "texts", request), read_sparse_vectors, join_lists)


def embed_tokens_call(
    texts: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    input_type: InputType | None = None,
    prompt_name: str | None = None,
    format: TokenFormat = "float32",
    return_offsets: bool = False,
) -> Call[list[TokenVectors]]:
    """See `Client.embed_tokens`."""
    if format not in get_args(TokenFormat):
        raise ValueError(f"unknown format: `{format}` (one of: {', '.join(get_args(TokenFormat))})")
    has_offsets = read_flag("return_offsets", return_offsets)
    request = partial(
        pb.EmbedTokensRequest,
        model=read_model(model, version),
        truncate=read_flag("truncate", truncate),
        **_prompt_fields(prompt_name, input_type),
        format=None if format == "float32" else f"VECTOR_FORMAT_{format.upper()}",
        return_offsets=has_offsets,
    )
    read = partial(read_token_vectors, format=format, has_offsets=bool(has_offsets))
    return Call("EmbedTokens", Split(read_texts(texts), "texts", request), read, join_lists)


def _prompt_fields(prompt_name: str | None, input_type: InputType | None) -> dict[str, Any]:
    """Return the fields of a request that choose a prompt."""
    if input_type is not None and input_type not in get_args(InputType):
        raise ValueError(f"unknown input_type: `{input_type}` (one of: {', '.join(get_args(InputType))})")
    return {
        "prompt_name": None if prompt_name is None else read_option("prompt_name", prompt_name),
        "input_type": f"INPUT_TYPE_{input_type.upper()}" if input_type else None,
    }


def classify_call(
    inputs: Iterable[str | tuple[str, str]],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int | None = None,
) -> Call[list[Classification]]:
    """See `Client.classify`."""
    ref = read_model(model, version)
    request = partial(
        pb.ClassifyRequest, model=ref, truncate=read_flag("truncate", truncate), top_k=read_count("top_k", top_k)
    )
    items = read_texts_or_pairs(inputs)
    return Call("Classify", Split(items, "inputs", request), read_classifications, join_lists)


def regress_call(
    inputs: Iterable[str | tuple[str, str]], model: str, version: str, truncate: bool | None
) -> Call[list[float]]:
    """See `Client.regress`."""
    request = partial(pb.RegressRequest, model=read_model(model, version), truncate=read_flag("truncate", truncate))
    return Call("Regress", Split(read_texts_or_pairs(inputs), "inputs", request), read_values, join_lists)


def choose_call(
    inputs: Iterable[tuple[Any, ...]], model: str, version: str, truncate: bool | None
) -> Call[list[Choice]]:
    """See `Client.choose`."""
    request = partial(pb.ChooseRequest, model=read_model(model, version), truncate=read_flag("truncate", truncate))
    return Call("Choose", Split(read_choices(inputs), "inputs", request), read_choice_results, join_lists)


def answer_call(
    inputs: Iterable[tuple[str, str | Sequence[str]]],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int = 1,
) -> Call[list[Answer]]:
    """See `Client.answer`."""
    ref = read_model(model, version)
    request = partial(
        pb.AnswerRequest, model=ref, truncate=read_flag("truncate", truncate), top_k=read_count("top_k", top_k)
    )
    return Call("Answer", Split(read_questions(inputs), "inputs", request), read_answers, join_lists)


def rerank_call(
    inputs: Iterable[tuple[str, Sequence[str]]],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_n: int | None,
    label: str,
    raw_scores: bool,
) -> Call[list[Ranking]]:
    """See `Client.rerank`."""
    count = read_count("top_n", top_n)
    request = partial(
        pb.RerankRequest,
        model=read_model(model, version),
        truncate=read_flag("truncate", truncate),
        top_n=count,
        label=read_option("label", label),
        raw_scores=read_flag("raw_scores", raw_scores),
    )
    requests = split_documents(read_rankings(inputs), request)
    return Call("Rerank", requests, read_ranked, join_lists, partial(merge_rankings, top_n=count))


def tag_call(
    inputs: Iterable[str | Sequence[str]],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    return_words: bool = False,
) -> Call[list[Tagging]]:
    """See `Client.tag`."""
    ref = read_model(model, version)
    request = partial(
        pb.TagRequest,
        model=ref,
        truncate=read_flag("truncate", truncate),
        return_words=read_flag("return_words", return_words),
    )
    return Call("Tag", Split(read_texts_or_words(inputs), "inputs", request), read_taggings, join_lists)


def fill_mask_call(
    texts: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    top_k: int = 5,
    targets: Iterable[str] = (),
) -> Call[list[tuple[MaskFill, ...]]]:
    """See `Client.fill_mask`."""
    request = partial(
        pb.FillMaskRequest,
        model=read_model(model, version),
        truncate=read_flag("truncate", truncate),
        top_k=read_count("top_k", top_k),
        targets=[read_option("targets", target) for target in read_items(targets, "targets")],
    )
    return Call("FillMask", Split(read_texts(texts), "texts", request), read_fills, join_lists)


def zero_shot_call(
    texts: Iterable[str],
    labels: Iterable[str],
    model: str,
    version: str,
    truncate: bool | None,
    *,
    template: str,
    multi_label: bool,
    top_k: int | None,
) -> Call[list[Classification]]:
    """See `Client.zero_shot`."""
    names = [read_option("labels", label) for label in read_items(labels, "labels")]
    request = partial(
        pb.ZeroShotRequest,
        model=read_model(model, version),
        labels=names,
        template=read_option("template", template),
        multi_label=read_flag("multi_label", multi_label),
        truncate=read_flag("truncate", truncate),
        top_k=read_count("top_k", top_k),
    )
    max_texts, label_bytes = max(1, MAX_PAIRS // (len(names) or 1)), request().ByteSize()
    requests = Split(read_texts(texts), "texts", request, max_texts, label_bytes)
    read = partial(read_zero_shot, multi_label=bool(multi_label))
    return Call("ZeroShot", requests, read, join_lists)


def tokenize_call(inputs: Iterable[str | tuple[str, str]], model: str, version: str) -> Call[list[Tokenized]]:
    """See `Client.tokenize`."""
    request = partial(pb.TokenizeRequest, model=read_model(model, version))
    items = read_texts_or_pairs(inputs)
    return Call("Tokenize", Split(items, "inputs", request), read_tokenized, join_lists)


def models_call() -> Call[list[Model]]:
    """See `Client.models`."""
    return Call(
        "ListModels",
        lambda batch_size: [Request(pb.ListModelsRequest())],
        lambda reply: [read_model_info(info) for info in reply.models],
        join_lists,
    )


def model_call(model: str, version: str) -> Call[Model]:
    """See `Client.model`."""
    request = pb.GetModelRequest(model=read_model(model, version))
    return Call(
        "GetModel",
        lambda batch_size: [Request(request)],
        read_model_info,
        only,
    )


def health_call(model: str, version: str) -> Call[bool]:
    """See `Client.health`."""
    ref = read_model(model, version)
    if ref.version and not ref.name:
        raise ValueError(f"`version` needs the name of its `model`: `{version}`")
    service = "/".join([SERVICE, *filter(None, (ref.name, ref.version))]) if ref.name else ""
    return Call(
        "Check",
        lambda batch_size: [Request(HealthRequest(service=service))],
        lambda reply: reply.status == SERVING,
        only,
    )
