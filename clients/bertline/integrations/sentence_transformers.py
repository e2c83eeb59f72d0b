"""Served model with the methods of SentenceTransformer that search, clustering and similar code call.

from bertline import Client
from bertline.integrations.sentence_transformers import Encoder
encoder = Encoder(Client("127.0.0.1:50051"))
vectors = encoder.encode(["one text", "another text"], normalize_embeddings=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from bertline._inputs import read_count
from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import InvalidInput, ModelNotFound, ServerError
from bertline.integrations._prompts import with_prompt
from bertline.results import Model

SimilarityName = Literal["cosine", "dot"]
_STEP = 1024
"""Texts between two updates of the progress bar, if no batch size is given."""

_UNSUPPORTED = {
    "output_value": ("sentence_embedding", "the server returns one vector for a text"),
    "precision": ("float32", "pass the vectors to sentence_transformers.quantize_embeddings"),
    "device": (None, "the server computes; its flags select the device"),
    "pool": (None, "the server computes; the client's `num_in_flight` limits concurrent requests"),
    "chunk_size": (None, "the client's `batch_size` limits the texts in a request"),
}
"""Arguments of SentenceTransformer that a client does not support: the allowed value, and what to do instead."""


class Encoder:
    """Model of a server in place of a SentenceTransformer.

    Texts that are too long are truncated, as in SentenceTransformer. Blank texts raise InvalidInput, because the server
    has no vector for them. Training, devices and token embeddings are not supported.

    Args:
        client: client of the server, with the `space` of stored vectors if there are some; the caller closes it.
        model: name of the model; empty for the default model of the task `embedding`.
        version: model version; empty for the highest loaded version.
        prompts: texts to put before inputs, by name, besides the model's or in place of them. `query` and `document`
            are empty by default.
        default_prompt_name: prompt to use if `encode` names none; None for the model's default prompt, if it has one.
        truncate_dim: keep only the first numbers of each vector, unless a call gives another dimension.
        truncate: truncate texts that are too long. False raises InvalidInput for them.
        similarity_fn_name: `cosine` or `dot`; None for the model's, or else `cosine`.

    The model's prompts, default prompt and similarity are those of its manifest when they are first needed.

    Raises:
        ValueError: for an unknown similarity or default prompt.
    """

    def __init__(
        self,
        client: Client,
        *,
        model: str = "",
        version: str = "",
        prompts: Mapping[str, str] | None = None,
        default_prompt_name: str | None = None,
        truncate_dim: int | None = None,
        truncate: bool = True,
        similarity_fn_name: SimilarityName | None = None,
    ) -> None:
        self.truncate_dim = truncate_dim
        self._given_prompts, self._given_default = dict(prompts or {}), default_prompt_name
        self._similarity_fn_name: SimilarityName | None = None
        if similarity_fn_name is not None:
            self.similarity_fn_name = similarity_fn_name
        self._client = client
        self._model, self._version, self._truncate = model, version, truncate
        if default_prompt_name not in (None, "query", "document", *self._given_prompts):
            self._prompt(default_prompt_name, None)

    @cached_property
    def prompts(self) -> dict[str, str]:
        """Texts to put before inputs, by name."""
        return {"query": "", "document": "", **self._settings.get("prompts", {}), **self._given_prompts}

    @property
    def default_prompt_name(self) -> str | None:
        """Prompt to use if `encode` names none."""
        return self._settings.get("default_prompt_name") if self._given_default is None else self._given_default

    @default_prompt_name.setter
    def default_prompt_name(self, value: str | None) -> None:
        self._given_default = value

    def encode(
        self,
        inputs: str | Sequence[str] | np.ndarray | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        show_progress_bar: bool | None = None,
        output_value: str = "sentence_embedding",
        precision: str | None = "float32",
        convert_to_numpy: bool = True,
        convert_to_tensor: bool = False,
        device: None = None,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        *,
        task: str | None = None,
        pool: None = None,
        chunk_size: None = None,
        sentences: str | Sequence[str] | np.ndarray | None = None,
    ) -> Any:
        """Return one vector per text.

        Args:
            inputs: a text, or a list of texts.
            prompt_name: name of a prompt of the encoder or the model to put before each text.
            prompt: text to put before each text instead.
            batch_size: texts per call of the client; None for all in one call.
            show_progress_bar: True for a bar (needs tqdm).
            output_value: only `sentence_embedding`.
            precision: only `float32`.
            convert_to_numpy: False for a list of tensors (needs torch).
            convert_to_tensor: True for one tensor (needs torch).
            device: only None.
            normalize_embeddings: divide each vector by its Euclidean norm, even if the model does not.
            truncate_dim: keep only the first numbers of each vector. If the model normalises, the shorter vectors have
                length 1 again.
            task: ignored, as in a SentenceTransformer without a router.
            pool: only None.
            chunk_size: only None.
            sentences: name of `inputs` before sentence-transformers 5.4.

        Returns:
            [texts, dim] float32, [dim] for a single text; [0, 0] for no texts.

        Raises:
            TypeError: unless exactly one of `inputs` and `sentences` is given, with texts.
            ValueError: for unsupported arguments and unknown prompts.
            BertlineError: see `bertline.errors`.
        """
        given = {"output_value": output_value, "precision": precision or "float32", "device": device}
        for name, value in (given | {"pool": pool, "chunk_size": chunk_size}).items():
            allowed, instead = _UNSUPPORTED[name]
            if value != allowed:
                raise ValueError(f"`{name}` cannot be `{value}`: {instead}")
        if (inputs is None) == (sentences is None):
            once = "" if inputs is None else ", without `sentences`"
            raise TypeError(f"`inputs` must be a text or a list of them{once}")
        texts_or_text: Any = sentences if inputs is None else inputs
        single = isinstance(texts_or_text, str)
        before = self._prompt(prompt_name, prompt)
        texts = with_prompt(before, [texts_or_text] if single else texts_or_text)
        options: dict[str, Any] = {
            "normalize": normalize_embeddings or None,  # False leaves a model that normalises as it is
            "dimensions": self.truncate_dim if truncate_dim is None else truncate_dim,
            "truncate": self._truncate,
            "model": self._model,
            "version": self._version,
            "prompt_name": "" if self._settings.get("default_prompt_name") else None,  # the texts have their prompt
        }
        vectors = self._embed(texts, batch_size, options, show_progress=bool(show_progress_bar))
        if convert_to_numpy and not convert_to_tensor:
            return vectors[0] if single else vectors
        import torch

        tensor = torch.from_numpy(vectors)
        if single:
            return tensor[0]
        return tensor if convert_to_tensor else list(tensor)

    def _embed(
        self, texts: list[str], batch_size: int | None, options: dict[str, Any], *, show_progress: bool
    ) -> np.ndarray:
        """Embed texts in one call, or in several with a progress bar, all with one version of the model."""
        step = read_count("batch_size", batch_size) or (_STEP if show_progress else max(len(texts), 1))
        if len(texts) > step:  # another version may be loaded in between
            served = self._served
            options |= {"model": served.name, "version": served.version}
        firsts: Iterable[int] = range(0, len(texts), step)
        if show_progress:
            from tqdm.auto import tqdm

            firsts = tqdm(firsts, desc="Batches")
        parts = []
        for first in firsts:
            try:
                parts.append(self._client.embed(texts[first : first + step], **options))
            except (InvalidInput, ServerError) as error:
                raise error.shifted(first) from error.__cause__
        return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.float32)

    def encode_query(
        self,
        inputs: str | Sequence[str] | np.ndarray | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *more: Any,
        **arguments: Any,
    ) -> Any:
        """Encode like `encode`, with the prompt `query` by default."""
        prompt_name = self._prompt_name(("query",), prompt_name, prompt)
        return self.encode(inputs, prompt_name, prompt, *more, **arguments)

    def encode_document(
        self,
        inputs: str | Sequence[str] | np.ndarray | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *more: Any,
        **arguments: Any,
    ) -> Any:
        """Encode like `encode`, with the prompt `document` by default, or `passage` or `corpus` if that was removed."""
        prompt_name = self._prompt_name(("document", "passage", "corpus"), prompt_name, prompt)
        return self.encode(inputs, prompt_name, prompt, *more, **arguments)

    @property
    def similarity_fn_name(self) -> SimilarityName:
        """`cosine` or `dot`. May be set, also to a SimilarityFunction of sentence-transformers."""
        if self._similarity_fn_name is None:
            self.similarity_fn_name = self._settings.get("similarity_fn_name") or "cosine"
        return self._similarity_fn_name or "cosine"

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: Any) -> None:
        name = getattr(value, "value", value)
        if name not in get_args(SimilarityName):
            raise ValueError(f"unknown similarity: `{name}` (one of: {', '.join(get_args(SimilarityName))})")
        self._similarity_fn_name = name

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the similarity of each vector with each other vector.

        Args:
            embeddings1: [n, dim] or [dim].
            embeddings2: [m, dim] or [dim].

        Returns:
            [n, m] float32. This is an array; SentenceTransformer returns a tensor.
        """
        return self._comparable(embeddings1) @ self._comparable(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Return the similarity of vectors row by row.

        Args:
            embeddings1: [n, dim].
            embeddings2: [n, dim].

        Returns:
            [n] float32.
        """
        return (self._comparable(embeddings1) * self._comparable(embeddings2)).sum(axis=1)

    def get_embedding_dimension(self) -> int:
        """Return the dimension of the vectors."""
        dim = self._served.dim
        return min(self.truncate_dim or dim, dim)

    def get_sentence_embedding_dimension(self) -> int:
        """Return the dimension of the vectors; name before sentence-transformers 5.4."""
        return self.get_embedding_dimension()

    @property
    def max_seq_length(self) -> int:
        """Maximum length of a text that is not truncated, in tokens."""
        return self._served.max_seq_length

    @property
    def _served(self) -> Model:
        return model_of_task(self._client.models(), "embedding", self._model, self._version)

    @cached_property
    def _settings(self) -> dict[str, Any]:
        """Settings of the model's manifest; empty if there is no such model, which the server's own error tells."""
        try:
            return dict(self._served.manifest.get("settings", {}))
        except ModelNotFound:
            return {}

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return prompt
        name = name or self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise ValueError(f"unknown prompt: `{name}` (prompts of this encoder: {', '.join(self.prompts)})")
        return self.prompts[name]

    def _prompt_name(self, names: Iterable[str], prompt_name: str | None, prompt: str | None) -> str | None:
        if prompt_name is not None or prompt is not None:
            return prompt_name
        return next((name for name in names if name in self.prompts), None)

    def _comparable(self, vectors: Any) -> np.ndarray:
        array = np.atleast_2d(np.asarray(vectors, dtype=np.float32))
        if self.similarity_fn_name == "dot":
            return array
        return array / np.maximum(np.linalg.norm(array, axis=1, keepdims=True), 1e-12)
