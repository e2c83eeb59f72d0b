"""Embed a list in several calls, with a progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from bertline._inputs import read_count
from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import InvalidInput, ModelNotFound, ServerError

_STEP = 1024
"""Texts between two updates of the progress bar, if no batch size is given."""


def embed_in_steps(
    client: Client, texts: list[str], step: int | None, options: Mapping[str, Any], *, show_progress: bool
) -> np.ndarray:
    """Embed texts like `client.embed`, `step` texts per call, all with one version of the model.

    Args:
        client: client of the server.
        texts: list of any length.
        step: texts per call; None for all in one call, or 1024 with a progress bar.
        options: arguments of `Client.embed`, including `model` and `version`.
        show_progress: show a progress bar.

    Returns:
        [texts, dim] float32; [0, 0] for no texts.

    Raises:
        ValueError: if `step` is below 1, or tqdm is not installed.
        TypeError: if `step` is not a whole number.
        BertlineError: like `client.embed`, with positions in the whole list.
    """
    step = read_count("batch_size", step) or (_STEP if show_progress else max(len(texts), 1))
    if len(texts) > step:  # another version may be loaded in between
        options = {**options, **_pinned(client, texts, options)}
    parts = [_embed(client, texts, first, step, options) for first in _step_starts(len(texts), step, show_progress)]
    return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)


def _pinned(client: Client, texts: list[str], options: Mapping[str, Any]) -> dict[str, str]:
    try:
        found = model_of_task(client.models(), "embedding", options["model"], options["version"])
    except ModelNotFound:
        client.embed(texts[:1], **options)  # raises the server's own error
        found = model_of_task(client.models(), "embedding", options["model"], options["version"])
    return {"model": found.name, "version": found.version}


def _embed(client: Client, texts: list[str], first: int, step: int, options: Mapping[str, Any]) -> np.ndarray:
    try:
        return client.embed(texts[first : first + step], **options)
    except (InvalidInput, ServerError) as error:
        raise error.shifted(first) from error.__cause__


def _step_starts(num_texts: int, step: int, show_progress: bool) -> Iterator[int]:
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
