"""A served model with the methods of SentenceTransformer that search, clustering and the like call.

from bertline import Client
from bertline.integrations.sentence_transformers import Encoder
encoder = Encoder(Client("127.0.0.1:50051"))
vectors = encoder.encode(["one text", "another text"], normalize_embeddings=True)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from bertline._models import model_of_task
from bertline.client import Client
from bertline.integrations._prompts import with_prompt
from bertline.integrations._steps import embed_in_steps
from bertline.results import Model

SimilarityName = Literal["cosine", "dot"]

_ELSEWHERE = {
    "output_value": ("sentence_embedding", "the server returns one vector for a text"),
    "precision": ("float32", "pass the vectors to sentence_transformers.quantize_embeddings"),
    "device": (None, "the server computes; it is told where when it is started"),
    "pool": (None, "the server computes; the client's `num_in_flight` says how much at one time"),
    "chunk_size": (None, "the client's `batch_size` says how many texts are in a request"),
}
"""What SentenceTransformer takes and a client cannot do: the value that changes nothing, and what to do instead."""


class Encoder:
    """The model of a server in place of a SentenceTransformer.

    Texts that are too long are cut, as SentenceTransformer does. Blank texts are refused, unlike there: the server has
    no vector for them. What SentenceTransformer does on its own machine (training, devices, token embeddings) is not
    here.

    Args:
        client: of the server; it stays open, whoever opened it closes it.
        model: its name; empty for the only loaded model of task `embedding`.
        version: empty for the highest loaded one.
        prompts: by name, what is put before texts; `query` and `document` are empty where they are not given.
        default_prompt_name: which of them, where `encode` names none.
        truncate_dim: keep so many numbers of each vector, the first ones, where a call does not say how many.
        truncate: False raises InvalidInput for texts that are too long instead of cutting them.
        similarity_fn_name: `cosine` or `dot`.

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
        similarity_fn_name: SimilarityName = "cosine",
    ) -> None:
        self.prompts = {"query": "", "document": "", **(prompts or {})}
        self.default_prompt_name = default_prompt_name
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = similarity_fn_name
        self._client = client
        self._model, self._version, self._truncate = model, version, truncate
        self._prompt(None, None)

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
        """One vector for each text.

        Args:
            inputs: a text, or a list of them.
            prompt_name: which of the encoder's prompts to put before each text.
            prompt: what to put before each text, instead.
            batch_size: texts to have under way at one time; None for as many as the client sends.
            show_progress_bar: True for a bar (needs tqdm).
            output_value: `sentence_embedding`, nothing else.
            precision: `float32`, nothing else.
            convert_to_numpy: False for a list of tensors (needs torch).
            convert_to_tensor: True for one tensor (needs torch).
            device: None, nothing else.
            normalize_embeddings: divide each vector by its Euclidean norm, also where the model does not.
            truncate_dim: keep so many numbers of each vector, the first ones. Where the model normalises, the shorter
                vectors have length 1 again.
            task: changes nothing, as for a SentenceTransformer without a router.
            pool: None, nothing else.
            chunk_size: None, nothing else.
            sentences: the name of `inputs` before sentence-transformers 5.4.

        Returns:
            [texts, dim] float32, [dim] for a single text; [0, 0] for no texts.

        Raises:
            TypeError: when neither `inputs` nor `sentences` came, both, or something else than texts.
            ValueError: for what a server cannot be asked for, and unknown prompts.
            BertlineError: see `bertline.errors`.
        """
        given = {"output_value": output_value, "precision": precision or "float32", "device": device}
        _refuse(given | {"pool": pool, "chunk_size": chunk_size})
        given_texts = _one_of(inputs, sentences)
        single = isinstance(given_texts, str)
        before = self._prompt(prompt_name, prompt)
        texts = with_prompt(before, [given_texts] if single else given_texts)
        options: dict[str, Any] = {
            "normalize": normalize_embeddings or None,  # False leaves a model that normalises as it is
            "dimensions": self.truncate_dim if truncate_dim is None else truncate_dim,
            "truncate": self._truncate,
            "model": self._model,
            "version": self._version,
        }
        vectors = embed_in_steps(self._client, texts, batch_size, options, show_progress=bool(show_progress_bar))
        if convert_to_tensor or not convert_to_numpy:
            return _tensors(vectors, single, convert_to_tensor)
        return vectors[0] if single else vectors

    def encode_query(
        self,
        inputs: str | Sequence[str] | np.ndarray | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        *more: Any,
        **arguments: Any,
    ) -> Any:
        """As `encode`, with the prompt `query` where no other is named."""
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
        """As `encode`, with the prompt `document` where no other is named; `passage` or `corpus` where it was removed
        from `prompts`."""
        prompt_name = self._prompt_name(("document", "passage", "corpus"), prompt_name, prompt)
        return self.encode(inputs, prompt_name, prompt, *more, **arguments)

    @property
    def similarity_fn_name(self) -> SimilarityName:
        """`cosine` or `dot`; may be set, also to the SimilarityFunction of sentence-transformers."""
        return self._similarity_fn_name

    @similarity_fn_name.setter
    def similarity_fn_name(self, value: Any) -> None:
        name = getattr(value, "value", value)
        if name not in get_args(SimilarityName):
            raise ValueError(f"unknown similarity: `{name}` (one of: {', '.join(get_args(SimilarityName))})")
        self._similarity_fn_name: SimilarityName = name

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """How alike vectors are, each with each.

        Args:
            embeddings1: [n, dim] or [dim].
            embeddings2: [m, dim] or [dim].

        Returns:
            [n, m] float32; an array where SentenceTransformer returns a tensor.
        """
        return self._comparable(embeddings1) @ self._comparable(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """How alike vectors are, each with the one at the same place: [n, dim] and [n, dim] give [n] float32."""
        return (self._comparable(embeddings1) * self._comparable(embeddings2)).sum(axis=1)

    def get_embedding_dimension(self) -> int:
        """Length of the vectors."""
        dim = self._served.dim
        return min(self.truncate_dim or dim, dim)

    def get_sentence_embedding_dimension(self) -> int:
        """Length of the vectors, by the name that sentence-transformers had before 5.4."""
        return self.get_embedding_dimension()

    @property
    def max_seq_length(self) -> int:
        """Longest text that is not cut, in tokens."""
        return self._served.max_seq_length

    @property
    def _served(self) -> Model:
        return model_of_task(self._client.models(), "embedding", self._model, self._version)

    def _prompt(self, name: str | None, prompt: str | None) -> str:
        name = name or self.default_prompt_name
        if prompt is not None or name is None:
            return prompt or ""
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


def _one_of(inputs: Any, sentences: Any) -> Any:
    if (inputs is None) == (sentences is None):
        raise TypeError(
            "`inputs` must be a text or a list of them" + ("" if inputs is None else ", without `sentences`")
        )
    return sentences if inputs is None else inputs


def _refuse(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        allowed, instead = _ELSEWHERE[name]
        if value != allowed:
            raise ValueError(f"`{name}` cannot be `{value}`: {instead}")


def _tensors(vectors: np.ndarray, single: bool, one: bool) -> Any:
    try:
        import torch
    except ImportError:
        raise ValueError("`convert_to_tensor`, and `convert_to_numpy=False`, need `torch`: pip install torch") from None
    tensor = torch.from_numpy(vectors)
    if single:
        return tensor[0]
    return tensor if one else list(tensor)
