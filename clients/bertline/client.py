"""The client that waits for replies.

from bertline import Client
with Client("127.0.0.1:50051") as client:
    vectors = client.embed(["one text", "another text"])
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice
from types import TracebackType
from typing import Any, TypeVar

import grpc
import numpy as np

from bertline._calls import (
    Pooling,
    answer_call,
    choose_call,
    classify_call,
    embed_call,
    fill_mask_call,
    health_call,
    model_call,
    models_call,
    regress_call,
    tag_call,
    tokenize_call,
)
from bertline._connection import Connection, Health, Priority, Stubs, health_of_error, health_of_reply
from bertline._convert import Answered, Call, Replies, Request
from bertline._inputs import read_timeout
from bertline._status import may_be_unhealthy
from bertline.errors import ModelNotFound
from bertline.results import Answer, Choice, Classification, MaskFill, Model, Tagging, Tokenized, Usage

ResultT = TypeVar("ResultT")


class Client:
    """Client of one server. Threads may share it; close it, or use it in `with`.

    A list of any length is sent as several requests, some of them at one time; results come in the order of the list.
    When one request fails, its error is raised and the others are cancelled. What the methods raise is told in
    `bertline.errors`.

    Args:
        target: `host:port`, or another address that gRPC understands (`unix:/path`).
        timeout: seconds that each request may take.
        batch_size: most inputs in one request.
        num_in_flight: most requests of one call that are under way at one time.
        credentials: of a server that speaks TLS, see `grpc.ssl_channel_credentials`.
        token: of a server that asks for one; without `credentials` it can be read on the way.
        check_health: send nothing to a server that says it does not serve, as one that starts, drains or hangs does.
            Of several servers the others are asked; of one the call fails. None: unless there is a `token`, which gRPC
            does not send with the question; servers with `--open-health` answer it all the same.
        priority: `bulk` for calls that can wait: a busy server computes those of others first.

    Raises:
        ValueError: when an argument is out of range.
    """

    def __init__(
        self,
        target: str = "127.0.0.1:50051",
        *,
        timeout: float = 30.0,
        batch_size: int = 64,
        num_in_flight: int = 4,
        credentials: grpc.ChannelCredentials | None = None,
        token: str | None = None,
        check_health: bool | None = None,
        priority: Priority = "interactive",
    ) -> None:
        self._connection = Connection(
            target=target,
            timeout=timeout,
            batch_size=batch_size,
            num_in_flight=num_in_flight,
            credentials=credentials,
            token=token,
            check_health=check_health,
            priority=priority,
        )
        self._stubs = Stubs(self._connection, grpc)
        self._closed = False

    def embed(
        self,
        texts: Iterable[str],
        *,
        pooling: Pooling | None = None,
        normalize: bool | None = None,
        dimensions: int | None = None,
        windows: bool = False,
        window_stride: int | None = None,
        model: str = "",
        version: str = "",
        truncate: bool | None = None,
        timeout: float | None = None,
        usage: Usage | None = None,
    ) -> np.ndarray:
        """One vector for each text.

        Args:
            texts: a list; a single string is refused.
            pooling: `cls` or `mean`, to make sure of it: another than the model's is refused.
            normalize: divide each vector by its Euclidean norm; None for what the model was made for.
            dimensions: keep so many numbers of each vector, the first ones; for models trained so (Matryoshka).
            windows: read texts that are too long in windows, whose vectors are averaged by their tokens.
            window_stride: tokens from the start of one window to the next; None for windows that do not overlap.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut texts that are too long instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            [texts, dim] float32; [0, 0] for no texts.
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
        """Labels with their probabilities, for each text or pair of texts.

        Args:
            inputs: a list of texts, of pairs, or of both.
            top_k: most labels for each input; None for all.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut inputs that are too long, from the end of the longer text, instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            One for each input; `.label` and `.score` are the likeliest.
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
        """A number for each text or pair of texts.

        Args:
            inputs: a list of texts, of pairs, or of both.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut inputs that are too long, from the end of the longer text, instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            One for each input, on the scale of the data that the model was trained on.
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
        """Which of several choices fits.

        Args:
            inputs: a list of (question, choices) or (context, question, choices); question and context may be empty.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut what is too long, from the end of the longer text, instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            One for each input; `.choice` is the number of the likeliest.
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
        """The spans of a context, or of several, that answer a question.

        Args:
            inputs: a list of (question, context) or (question, contexts). Contexts may be longer than the model reads.
            top_k: most spans for each input.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut questions that are too long instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            One for each input; `.text` is the best answer, empty for none.
        """
        call = answer_call(inputs, model, version, truncate, top_k=top_k)
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
        """The entities of texts: people, places, or whatever the model was trained on.

        Args:
            inputs: a list of texts, which may be longer than the model reads, of lists of words, or of both.
            return_words: return every word with its tag, too.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut words that are longer than the model reads instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            One for each input.
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
        """The likeliest tokens at each [MASK].

        Args:
            texts: a list of texts, each with at least one [MASK].
            top_k: most tokens for each [MASK].
            targets: tokens of the vocabulary to score too, whatever their rank.
            model: its name; empty for the only loaded model of this task.
            version: empty for the highest loaded one.
            truncate: cut texts that are too long instead of raising InvalidInput;
                None as the model was evaluated.
            timeout: seconds that each request may take; None for the client's.
            usage: gets tokens, truncation and timings added to it.

        Returns:
            For each text, one MaskFill for each [MASK] in the order of the text.
        """
        call = fill_mask_call(texts, model, version, truncate, top_k=top_k, targets=targets)
        return self._run(call, timeout, usage)

    def tokenize(
        self,
        inputs: Iterable[str | tuple[str, str]],
        *,
        model: str = "",
        version: str = "",
        timeout: float | None = None,
    ) -> list[Tokenized]:
        """What the model's tokenizer makes of texts or pairs, also of those that are longer than the model reads.

        Args:
            inputs: a list of texts, of pairs, or of both.
            model: its name; empty for the only loaded model.
            version: empty for the highest loaded one.
            timeout: seconds that each request may take; None for the client's.

        Returns:
            One for each input; `Model.max_seq_length` says how many tokens fit.
        """
        return self._run(tokenize_call(inputs, model, version), timeout)

    def models(self, *, timeout: float | None = None) -> list[Model]:
        """All versions that the server has, those that it cannot load included: `state` and `error` tell."""
        return self._run(models_call(), timeout)

    def model(self, name: str = "", version: str = "", *, timeout: float | None = None) -> Model:
        """One loaded model: its highest version unless another is named; without a name, the only one."""
        return self._run(model_call(name, version), timeout)

    def health(self, model: str = "", version: str = "", *, timeout: float | None = None) -> bool:
        """Whether the server can be asked now, or a model, or a version of it; of several servers, one is asked.

        Returns:
            False while it starts, drains or hangs, and for a model that is not loaded. A server that cannot be reached
            raises ConnectionFailed.
        """
        try:
            return self._run(health_call(model, version), timeout)
        except ModelNotFound:
            return False

    def close(self) -> None:
        """Close the connection; calls under way fail with ServerError."""
        self._closed = True
        for channel in self._stubs.channels:
            channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, call: Call[ResultT], timeout: float | None, usage: Usage | None = None) -> ResultT:
        if self._closed:
            raise ValueError("the client is closed")
        limit = self._connection.timeout if timeout is None else read_timeout(timeout)
        replies = Replies(call, usage)
        with closing(self._answered(call, limit)) as answered:
            for request, reply in answered:
                replies.add(request, reply)
        return replies.result()

    def _answered(self, call: Call[Any], timeout: float) -> Generator[Answered, None, None]:
        """Send the requests of a call, and yield each with its reply, in order."""
        requests = iter(call.requests(self._connection.batch_size))
        first_two = list(islice(requests, 2))
        if len(first_two) > 1:
            yield from self._pipelined(call.method, chain(first_two, requests), timeout)
        for request in first_two[: 2 - len(first_two)]:  # blocking takes half the CPU time of a future
            yield self._blocking(call.method, request, timeout)

    def _pipelined(self, method: str, requests: Iterable[Request], timeout: float) -> Generator[Answered, None, None]:
        in_flight: deque[tuple[Request, Any, bool]] = deque()
        try:
            for request in requests:
                if len(in_flight) == self._connection.num_in_flight:
                    yield self._first(method, in_flight, timeout)
                is_checked = self._stubs.is_checked(method)
                rpc = self._stubs.method(method, is_checked=is_checked).future
                in_flight.append((request, self._connection.send(rpc, request, timeout), is_checked))
            while in_flight:
                yield self._first(method, in_flight, timeout)
        finally:
            for _, call, _ in in_flight:
                call.cancel()

    def _first(self, method: str, in_flight: deque[tuple[Request, Any, bool]], timeout: float) -> Answered:
        request, call, is_checked = in_flight[0]
        answered = self._wait(method, request, timeout, call.result, is_checked=is_checked)
        in_flight.popleft()
        return answered

    def _blocking(self, method: str, request: Request, timeout: float, *, plain: bool = False) -> Answered:
        is_checked = not plain and self._stubs.is_checked(method)
        rpc = self._stubs.method(method, is_checked=is_checked)
        reply = partial(self._connection.send, rpc, request, timeout)
        return self._wait(method, request, timeout, reply, is_checked=is_checked)

    def _wait(
        self, method: str, request: Request, timeout: float, reply: Callable[[], Any], *, is_checked: bool
    ) -> Answered:
        """Wait for a reply. Send the request again if it failed only because the server refuses health checks."""
        try:
            answered = request, reply()
        except grpc.RpcError as error:
            health = self._health(timeout) if is_checked and may_be_unhealthy(error) else None
            if health is not Health.REFUSED:
                raise self._stubs.error(error, request, timeout, health) from error
        else:
            self._stubs.was_connected = True
            return answered
        answered = self._blocking(method, request, timeout, plain=True)
        self._stubs.give_up_health()
        return answered

    def _health(self, timeout: float) -> Health:
        watch = self._stubs.watch_health(timeout)
        try:
            return health_of_reply(next(watch, None))
        except grpc.RpcError as error:
            return health_of_error(error)
        finally:
            watch.cancel()
