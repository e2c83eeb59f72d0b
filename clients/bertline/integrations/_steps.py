"""Vectors of a list in several calls, of which a progress bar can tell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertline._inputs import read_count
from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import InvalidInput, InvalidItem, ModelNotFound

_STEP = 1024
"""Texts between two states of the progress bar, where no batch size says it."""


def embed_in_steps(
    client: Client, texts: list[str], step: int | None, options: Mapping[str, Any], *, show_progress: bool
) -> np.ndarray:
    """As `client.embed`, `step` texts at one time; all by one version of the model.

    Args:
        client: of the server.
        texts: any number of them.
        step: None for one call, or as many as a progress bar needs.
        options: of `Client.embed`, `model` and `version` among them.
        show_progress: show a bar.

    Returns:
        [texts, dim] float32; [0, 0] for no texts.

    Raises:
        ValueError: when `step` is below 1, or tqdm is missing.
        TypeError: when `step` is no whole number.
        BertlineError: as `client.embed`, with positions in the whole list.
    """
    step = read_count("batch_size", step) or (_STEP if show_progress else max(len(texts), 1))
    if len(texts) > step:  # another model may be loaded meanwhile
        options = {**options, **_pinned(client, texts, options)}
    parts = [_embed(client, texts, first, step, options) for first in _firsts(len(texts), step, show_progress)]
    return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


def _pinned(client: Client, texts: list[str], options: Mapping[str, Any]) -> dict[str, str]:
    try:
        found = model_of_task(client.models(), "embedding", options["model"], options["version"])
    except ModelNotFound:
        client.embed(texts[:1], **options)  # the server says what is wrong, as it does where one call is enough
        found = model_of_task(client.models(), "embedding", options["model"], options["version"])
    return {"model": found.name, "version": found.version}


def _embed(client: Client, texts: list[str], first: int, step: int, options: Mapping[str, Any]) -> np.ndarray:
    try:
        return client.embed(texts[first : first + step], **options)
    except InvalidInput as error:
        if not (first and error.items):
            raise
        raise InvalidInput.of([_moved(item, first) for item in error.items]) from error


def _moved(item: InvalidItem, first: int) -> InvalidItem:
    return item if item.index is None else InvalidItem(item.index + first, item.field, item.reason)


def _firsts(num_texts: int, step: int, show_progress: bool) -> Iterator[int]:
    firsts = range(0, num_texts, step)
    if not show_progress:
        yield from firsts
        return
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ValueError("`show_progress_bar` needs `tqdm`: pip install tqdm") from None
    with tqdm(total=num_texts, unit="text") as bar:
        for first in firsts:
            yield first
            bar.update(min(step, num_texts - first))
