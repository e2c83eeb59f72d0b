"""Blocking client.

from bertline import Client
with Client("127.0.0.1:50051") as client:
    vectors = client.embed(["one text", "another text"])
"""

from __future__ import annotations

from bertline._blocking_sender import BlockingSender, blocking
from bertline.errors import ModelNotFound
from bertline.operations.answer import answer as _answer
from bertline.operations.choose import choose as _choose
from bertline.operations.classify import classify as _classify
from bertline.operations.embed import embed as _embed
from bertline.operations.embed_sparse import embed_sparse as _embed_sparse
from bertline.operations.embed_tokens import embed_tokens as _embed_tokens
from bertline.operations.fill_mask import fill_mask as _fill_mask
from bertline.operations.models import health as _health
from bertline.operations.models import model as _model
from bertline.operations.models import models as _models
from bertline.operations.regress import regress as _regress
from bertline.operations.rerank import rerank as _rerank
from bertline.operations.tag import tag as _tag
from bertline.operations.tokenize import tokenize as _tokenize
from bertline.operations.zero_shot import zero_shot as _zero_shot


class Client(BlockingSender):
    """Client of one server. Thread-safe. Use it in `with`, or call `close`.

    A list of any length is sent as several requests, some of them concurrently. Results are in the order of the list.
    If a request fails, its error is raised and the others are cancelled. `bertline.errors` lists the errors.

    A client that is copied or pickled is a new one with the same arguments. One with `credentials` cannot be pickled.

    The methods are described in `operations`. Those for a task take these arguments, too:
        model: name of the model; empty for the default model of the task.
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
        space: `Model.space` or `Usage.space` of stored vectors. Methods that return vectors raise OtherSpace if the
            model that answers gives others, as after a change of the model under its name. None accepts any.

    Raises:
        ValueError: if an argument is out of range.
        TypeError: if an argument has the wrong type.
    """

    embed = blocking(_embed)
    embed_sparse = blocking(_embed_sparse)
    embed_tokens = blocking(_embed_tokens)
    classify = blocking(_classify)
    regress = blocking(_regress)
    choose = blocking(_choose)
    answer = blocking(_answer)
    rerank = blocking(_rerank)
    tag = blocking(_tag)
    fill_mask = blocking(_fill_mask)
    zero_shot = blocking(_zero_shot)
    tokenize = blocking(_tokenize)
    models = blocking(_models)
    model = blocking(_model)

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
            return self._run(_health(model, version, timeout))
        except ModelNotFound:
            return False
