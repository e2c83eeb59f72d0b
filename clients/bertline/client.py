"""Blocking client.

from bertline import Client
with Client("127.0.0.1:50051") as client:
    vectors = client.embed(["one text", "another text"])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bertline._blocking_sender import BlockingSender
from bertline.errors import ModelNotFound
from bertline.operations.answer import answer_call
from bertline.operations.base import InputType
from bertline.operations.choose import choose_call
from bertline.operations.classify import classify_call
from bertline.operations.embed import Pooling, VectorFormat, embed_call
from bertline.operations.embed_sparse import embed_sparse_call
from bertline.operations.embed_tokens import TokenFormat, embed_tokens_call
from bertline.operations.fill_mask import fill_mask_call
from bertline.operations.models import health_call, model_call, models_call
from bertline.operations.regress import regress_call
from bertline.operations.rerank import rerank_call
from bertline.operations.tag import tag_call
from bertline.operations.tokenize import tokenize_call
from bertline.operations.zero_shot import zero_shot_call
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
    Usage,
)


class Client(BlockingSender):
    """Client of one server. Thread-safe. Use it in `with`, or call `close`.

    A list of any length is sent as several requests, some of them concurrently. Results are in the order of the list.
    If a request fails, its error is raised and the others are cancelled. `bertline.errors` lists the errors.

    Methods for a task take these arguments, too:
        model: name of the model; empty for the only loaded model of the task.
        version: model version; empty for the highest loaded version.
        truncate: truncate texts that are too long for the model, of a pair the longer one, instead of raising
            InvalidInput; None for the setting that the model was evaluated with. Contexts, documents and texts to tag
            may have any length.
        timeout: maximum seconds for each request; None for the client's timeout.
        usage: receives tokens, truncation and timings.

    Args:
        target: `host:port`, or another address that gRPC understands (`unix:/path`).
        timeout: maximum seconds for each request.
        batch_size: maximum number of inputs in one request.
        num_in_flight: maximum number of concurrent requests of one call.
        credentials: for a server that speaks TLS, see `grpc.ssl_channel_credentials`.
        token: for a server that requires one. Without `credentials` it is sent unencrypted.
        check_health: send nothing to a server that reports NOT_SERVING because it starts, drains or hangs. Other
            servers of the target get the requests; without any, the call fails. None means True without `token` and
            False with one: gRPC sends no token with health checks, and only servers with `--open-health` allow that.
        priority: `bulk` for calls that can wait: a busy server computes them after the others.
        coalesce: send small calls that come while `num_in_flight` others with the same options are under way, from
            other threads or tasks, together as one request. Each keeps its own result, timeout and error.

    Raises:
        ValueError: if an argument is out of range.
        TypeError: if an argument has the wrong type.
    """

    def embed(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        windows: bool = False,
        window_stride: int | None = None,
        prompt_name: str | None = None,
        input_type: InputType | None = None,
        format: VectorFormat = "float32",
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> np.ndarray:
        """Return one vector per text.

        Args:
            texts: list of texts. A single string raises TypeError.
            pooling: `cls`, `mean` or another name of `Pooling`: raise InvalidInput if the model uses another one.
            normalize: divide each vector by its Euclidean norm; None for the model's own setting.
            dimensions: keep only the first numbers of each vector, for models trained for this (Matryoshka).
            windows: split texts that are too long into windows, each with the prompt, and average their vectors
                weighted by tokens.
            window_stride: tokens from the start of one window to the start of the next; None for no overlap.
            prompt_name: name of the model's prompt to put before each text, see `settings` of `Model.manifest`;
                None for the model's default prompt, if it has one; empty for none.
            input_type: `query` or `document`: put the model's prompt for them before each text, if it has one.
            format: `float32`; `float16`; `int8`, each number divided by the scale of its dimension, see
                `Model.int8_scales`; or `binary`, the signs packed into bits as by numpy.packbits.

        Returns:
            [texts, dim] in the format; binary: [texts, bytes for dim bits] uint8. [0, 0] for no texts.
        """
        call = embed_call(
            texts,
            model,
            version,
            truncate,
            pooling=pooling,
            normalize=normalize,
            dimensions=dimensions,
            windows=windows,
            window_stride=window_stride,
            prompt_name=prompt_name,
            input_type=input_type,
            format=format,
        )
        return self._run(call, timeout, usage)

    def embed_sparse(
        self,
        texts: Iterable[str],
        *,
        top_k: int | None = None,
        return_tokens: bool = False,
        prompt_name: str | None = None,
        input_type: InputType | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[SparseVector]:
        """Return weights of tokens of the vocabulary for each text (SPLADE).

        Args:
            texts: list of texts. A single string raises TypeError.
            top_k: maximum number of weights per text, the largest ones; None for the model's own number, `top_k` in
                `settings` of `Model.manifest`.
            return_tokens: also return the tokens, not only their ids.
            prompt_name: name of the model's prompt to put before each text; None for the model's default prompt, if it
                has one; empty for none.
            input_type: `query` or `document`: put the model's prompt for them before each text, if it has one.

        Returns:
            One sparse vector per text.
        """
        call = embed_sparse_call(
            texts,
            model,
            version,
            truncate,
            top_k=top_k,
            return_tokens=return_tokens,
            prompt_name=prompt_name,
            input_type=input_type,
        )
        return self._run(call, timeout, usage)

    def embed_tokens(
        self,
        texts: Iterable[str],
        *,
        input_type: InputType | None = None,
        prompt_name: str | None = None,
        format: TokenFormat = "float32",
        return_offsets: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[TokenVectors]:
        """Return a vector for each token of each text (ColBERT).

        Args:
            texts: list of texts. A single string raises TypeError.
            input_type: `query` for queries; otherwise texts are documents, whose punctuation has no vectors if the
                model was trained so. Also puts the model's prompt for them before each text, if it has one.
            prompt_name: name of the model's prompt to put before each text instead; None for the one of `input_type`,
                without it for the model's default prompt; empty for none.
            format: `float32` or `float16`.
            return_offsets: also return the place of each token in its text.

        Returns:
            The vectors of each text. Their number differs.
        """
        call = embed_tokens_call(
            texts,
            model,
            version,
            truncate,
            input_type=input_type,
            prompt_name=prompt_name,
            format=format,
            return_offsets=return_offsets,
        )
        return self._run(call, timeout, usage)

    def classify(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        top_k: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Classification]:
        """Return labels with probabilities for each text or pair of texts.

        Args:
            inputs: list of texts, pairs of texts, or both.
            top_k: maximum number of labels per input; None for all. Selected labels of a multi-label model come in
                addition.

        Returns:
            One classification per input. `.label` and `.score` are those of the most likely label; `.selected` has all
            labels that the input has, any number of them if the model is a multi-label one.
        """
        call = classify_call(inputs, model, version, truncate, top_k=top_k)
        return self._run(call, timeout, usage)

    def regress(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[float]:
        """Return a number for each text or pair of texts.

        Args:
            inputs: list of texts, pairs of texts, or both.

        Returns:
            One number per input, on the scale of the training data.
        """
        call = regress_call(inputs, model, version, truncate)
        return self._run(call, timeout, usage)

    def choose(
        self,
        inputs: Iterable[tuple[str, Sequence[str]] | tuple[str, str, Sequence[str]]],
        *,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Choice]:
        """Return which of several choices fits best.

        Args:
            inputs: list of (question, choices) or (context, question, choices). Question and context may be empty.

        Returns:
            One result per input; `.choice` is the index of the most likely choice.
        """
        call = choose_call(inputs, model, version, truncate)
        return self._run(call, timeout, usage)

    def answer(
        self,
        inputs: Iterable[tuple[str, str | Sequence[str]]],
        *,
        top_k: int = 1,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Answer]:
        """Return the spans of contexts that answer a question.

        Args:
            inputs: list of (question, context) or (question, contexts). Contexts may have any length.
            top_k: maximum number of spans per input.

        Returns:
            One answer per input; `.text` is the best one, empty for "no answer".
        """
        call = answer_call(inputs, model, version, truncate, top_k=top_k)
        return self._run(call, timeout, usage)

    def rerank(
        self,
        inputs: Iterable[tuple[str, Sequence[str]]],
        *,
        top_n: int | None = None,
        label: str = "",
        raw_scores: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Ranking]:
        """Return the documents of each query in the order in which they fit it.

        Args:
            inputs: list of (query, documents). Documents may have any length. `batch_size` is the maximum number of
                documents in one request.
            top_n: maximum number of documents per query; None for all.
            label: label of a classification model that means that a document fits; may be empty for the labels 0 and 1,
                and LABEL_0 and LABEL_1.
            raw_scores: return scores before the model's activation function.
            model: name of the model; empty for the only loaded one for regression, for vectors of tokens, or for
                answers if it was trained on unanswerable questions.

        Returns:
            One ranking per query; `.documents` has position and score of each document, best first.
        """
        call = rerank_call(inputs, model, version, truncate, top_n=top_n, label=label, raw_scores=raw_scores)
        return self._run(call, timeout, usage)

    def tag(
        self,
        inputs: Iterable[str | Sequence[str]],
        *,
        return_words: bool = False,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Tagging]:
        """Return the entities in texts: people, places, or other types that the model was trained on.

        Args:
            inputs: list of texts of any length, lists of words, or both.
            return_words: also return every word with its tag.

        Returns:
            One tagging per input.
        """
        call = tag_call(inputs, model, version, truncate, return_words=return_words)
        return self._run(call, timeout, usage)

    def fill_mask(
        self,
        texts: Iterable[str],
        *,
        top_k: int = 5,
        targets: Iterable[str] = (),
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[tuple[MaskFill, ...]]:
        """Return the most likely tokens at each mask.

        Args:
            texts: list of texts, each with at least one mask token of the model: [MASK], or <mask> in RoBERTa and
                similar models. InvalidInput for a text without one names the token.
            top_k: maximum number of tokens per mask.
            targets: tokens of the vocabulary to score in any case.

        Returns:
            For each text, one MaskFill per mask, in the order of the text.
        """
        call = fill_mask_call(texts, model, version, truncate, top_k=top_k, targets=targets)
        return self._run(call, timeout, usage)

    def zero_shot(
        self,
        texts: Iterable[str],
        labels: Iterable[str],
        *,
        template: str = "",
        multi_label: bool = False,
        top_k: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> list[Classification]:
        """Return which of the given labels fit each text, by a model for natural language inference.

        Args:
            texts: list of texts. A single string raises TypeError.
            labels: labels to choose from, each once; at least two, or one with `multi_label`.
            template: sentence with `{}`, which stands for the label; empty for `This example is {}.`
            multi_label: let a text have any number of labels: each is judged on its own.
            top_k: maximum number of labels per text; None for all. With `multi_label`, selected ones come in addition.
            model: name of the model; empty for the only loaded one with a label `entailment`.

        Returns:
            One classification per text, as `classify` returns them.
        """
        call = zero_shot_call(
            texts, labels, model, version, truncate, template=template, multi_label=multi_label, top_k=top_k
        )
        return self._run(call, timeout, usage)

    def tokenize(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        timeout: float | None = None,
    ) -> list[Tokenized]:
        """Return the tokens of texts or pairs of texts of any length, by the model's tokenizer.

        Args:
            inputs: list of texts, pairs of texts, or both.
            model: name of the model; empty for the only loaded model.
            version: model version; empty for the highest loaded version.
            timeout: maximum seconds for each request; None for the client's timeout.

        Returns:
            One result per input. `Model.max_seq_length` is the number of tokens that the model reads.
        """
        return self._run(tokenize_call(inputs, model, version), timeout)

    def models(self, *, timeout: float | None = None) -> list[Model]:
        """Return all versions on the server, including those that failed to load: see their `state` and `error`."""
        return self._run(models_call(), timeout)

    def model(self, name: str = "", version: str = "", *, timeout: float | None = None) -> Model:
        """Return one loaded model.

        Args:
            name: name of the model; empty for the only loaded model.
            version: model version; empty for the highest loaded version.
            timeout: maximum seconds for the request; None for the client's timeout.
        """
        return self._run(model_call(name, version), timeout)

    def health(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """Return whether the server, a model, or a version of it is ready. One of several servers replies.

        Args:
            model: name of the model; empty for the server as a whole.
            version: model version; empty for any.
            timeout: maximum seconds for the request; None for the client's timeout.

        Returns:
            False while the server starts, drains or hangs, and for a model that is not loaded.

        Raises:
            ConnectionFailed: if the server cannot be reached.
        """
        try:
            return self._run(health_call(model, version), timeout)
        except ModelNotFound:
            return False
