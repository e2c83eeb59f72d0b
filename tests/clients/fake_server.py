"""A server of the wire contract in this process, whose answers follow from the texts alone."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
from google.protobuf import any_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from bertline.testing._health import FakeHealth
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderServicer, add_EncoderServicer_to_server

DIM = 4
TIMINGS = pb.Timings(tokenize_s=0.25, queue_s=0.5, inference_s=1.0)
LABELS = ("negative", "neutral", "[positive]")


INFO = pb.ModelInfo(
    model=pb.ModelRef(name="fake", version="1"),
    task="classification",
    precision="fp32",
    max_seq_length=128,
    labels=LABELS,
    digest="ab" * 32,
    manifest_json='{"opset": 18}',
    state=pb.MODEL_STATE_READY,
)
BROKEN = pb.ModelInfo(
    model=pb.ModelRef(name="fake", version="2"), state=pb.MODEL_STATE_FAILED, error="`models/fake/2` holds no manifest"
)


def vector(text: str) -> np.ndarray:
    """[DIM] float32 in [0, 1)."""
    return np.frombuffer(hashlib.sha256(text.encode()).digest()[: 4 * DIM], dtype="<u4").astype("<f4") / np.float32(
        2**32
    )


class FakeEncoder(EncoderServicer):
    """Refuses blank texts and the word `refuse`; waits `delay` seconds; fails with `status` when that is set."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.delay = 0.0
        self.status: tuple[grpc.StatusCode, str] | None = None
        self.models = [pb.ModelRef(name="fake", version="1")]
        """Which model replies, one after the other."""
        self.fail_after: int | None = None
        """Requests that are answered, before all others fail."""
        self.refuse_first = 0
        """Requests that are refused as too many, before all others are answered."""
        self.num_in_flight = 0
        self.max_in_flight = 0
        self._lock = threading.Lock()

    @contextmanager
    def _answering(self, request: Any, context: grpc.ServicerContext) -> Iterator[pb.ModelRef]:
        with self._lock:
            self.requests.append(request)
            self.num_in_flight += 1
            self.max_in_flight = max(self.max_in_flight, self.num_in_flight)
            model = self.models[len(self.requests) % len(self.models)]
        try:
            time.sleep(self.delay)
            if self.status:
                context.abort(*self.status)
            if self.fail_after is not None and len(self.requests) > self.fail_after:
                context.abort(grpc.StatusCode.INTERNAL, "broken")
            if len(self.requests) <= self.refuse_first:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the queue is full")
            if request.model.name not in ("", "fake"):
                context.abort(grpc.StatusCode.NOT_FOUND, f"no model `{request.model.name}`; loaded: `fake`")
            yield model
        finally:
            with self._lock:
                self.num_in_flight -= 1

    def Embed(self, request: pb.EmbedRequest, context: grpc.ServicerContext) -> pb.EmbedReply:
        with self._answering(request, context) as model:
            refuse(context, [(f"texts[{i}]", text) for i, text in enumerate(request.texts)])
            rows = [vector(text) for text in request.texts]
            return pb.EmbedReply(
                model=model,
                dim=DIM,
                vectors=np.array(rows, dtype="<f4").tobytes(),
                num_tokens=[len(text) for text in request.texts],
                num_truncated=[max(0, len(text) - 10) for text in request.texts],
                timings=TIMINGS,
            )

    def Classify(self, request: pb.ClassifyRequest, context: grpc.ServicerContext) -> pb.ClassifyReply:
        with self._answering(request, context) as model:
            refuse(context, [(f"inputs[{i}].text", item.text) for i, item in enumerate(request.inputs)])
            return pb.ClassifyReply(
                model=model, results=[classification(item.text + item.text_pair) for item in request.inputs]
            )

    def Answer(self, request: pb.AnswerRequest, context: grpc.ServicerContext) -> pb.AnswerReply:
        with self._answering(request, context) as model:
            texts = {
                f"inputs[{i}].contexts[{number}]": text
                for i, item in enumerate(request.inputs)
                for number, text in enumerate(item.contexts)
            }
            refuse(context, list(texts.items()))
            return pb.AnswerReply(
                model=model, results=[answer(item.question, item.contexts, request.top_k) for item in request.inputs]
            )

    def Regress(self, request: pb.RegressRequest, context: grpc.ServicerContext) -> pb.RegressReply:
        with self._answering(request, context) as model:
            refuse(context, [(f"inputs[{i}].text", item.text) for i, item in enumerate(request.inputs)])
            return pb.RegressReply(
                model=model, values=[len(item.text) + len(item.text_pair) / 4 for item in request.inputs]
            )

    def Choose(self, request: pb.ChooseRequest, context: grpc.ServicerContext) -> pb.ChooseReply:
        with self._answering(request, context) as model:
            return pb.ChooseReply(model=model, results=[choose(item.choices) for item in request.inputs])

    def Tag(self, request: pb.TagRequest, context: grpc.ServicerContext) -> pb.TagReply:
        with self._answering(request, context) as model:
            texts = [item.text or " ".join(item.words) for item in request.inputs]
            refuse(context, [(f"inputs[{i}].text", text) for i, text in enumerate(texts)])
            return pb.TagReply(model=model, results=[tag(text, request.return_words) for text in texts])

    def Tokenize(self, request: pb.TokenizeRequest, context: grpc.ServicerContext) -> pb.TokenizeReply:
        with self._answering(request, context) as model:
            result = pb.TokenizedInput(
                ids=[2, 7, 3],
                tokens=["[CLS]", "word", "[SEP]"],
                starts=[0, 0, 0],
                ends=[0, 4, 0],
                type_ids=[0, 0, 0],
                special=[True, False, True],
            )
            return pb.TokenizeReply(model=model, results=[result] * len(request.inputs))

    def FillMask(self, request: pb.FillMaskRequest, context: grpc.ServicerContext) -> pb.FillMaskReply:
        with self._answering(request, context) as model:
            refuse(context, [(f"texts[{i}]", text) for i, text in enumerate(request.texts)])
            fill = pb.MaskFill(
                tokens=[pb.TokenScore(token=f"word{rank}", score=0.5 / (rank + 1)) for rank in range(request.top_k)],
                targets=[pb.TokenScore(token=token, score=0.25) for token in request.targets],
            )
            results = [pb.FillMaskResult(masks=[fill] * text.count("[MASK]")) for text in request.texts]
            return pb.FillMaskReply(model=model, results=results)

    def ListModels(self, request: pb.ListModelsRequest, context: grpc.ServicerContext) -> pb.ListModelsReply:
        if self.status:
            context.abort(*self.status)
        return pb.ListModelsReply(models=[INFO, BROKEN])

    def GetModel(self, request: pb.GetModelRequest, context: grpc.ServicerContext) -> pb.ModelInfo:
        with self._answering(request, context):
            return INFO


def classification(text: str) -> pb.Classification:
    """All labels, the one that the text's length chooses first."""
    first = len(text) % len(LABELS)
    labels = [LABELS[first], *(label for label in LABELS if label != LABELS[first])]
    scores = (0.75, 0.15, 0.1)
    return pb.Classification(labels=[pb.LabelScore(label=a, score=b) for a, b in zip(labels, scores, strict=True)])


def answer(question: str, contexts: Sequence[str], top_k: int) -> pb.AnswerResult:
    """The first occurrence of the question's last word in the contexts."""
    word = question.rstrip("?").split()[-1]
    for number, context in enumerate(contexts):
        if (start := context.find(word)) >= 0:
            span = pb.Span(start=start, end=start + len(word), text=word, score=0.8, context=number)
            return pb.AnswerResult(spans=[span] * top_k, has_answer=True, no_answer_score=0.1)
    return pb.AnswerResult(has_answer=False, no_answer_score=0.9)


def choose(choices: Sequence[str]) -> pb.ChooseResult:
    """The longest one."""
    scores = np.array([len(choice) for choice in choices]) / sum(map(len, choices))
    return pb.ChooseResult(choice=int(scores.argmax()), scores=scores)


def tag(text: str, return_words: bool) -> pb.TagResult:
    """Words that begin with a capital."""
    found = [(match.start(), match.end(), match[0]) for match in re.finditer(r"\w+", text)]
    entities = [
        pb.Entity(start=start, end=end, text=word, label="LOC", score=0.5)
        for start, end, word in found
        if word[0].isupper()
    ]
    words = [pb.TaggedWord(start=start, end=end, tag="O", score=0.5) for start, end, _ in found if return_words]
    return pb.TagResult(entities=entities, words=words)


def refuse(context: grpc.ServicerContext, fields: Sequence[tuple[str, str]]) -> None:
    """Abort with google.rpc.BadRequest when a text is blank or asks for it."""
    reasons = {field: "empty text" for field, text in fields if not text.strip()}
    reasons |= {field: "refused" for field, text in fields if "refuse" in text.split()}
    if reasons:
        details = any_pb2.Any()
        violations = [
            error_details_pb2.BadRequest.FieldViolation(field=field, description=reason)
            for field, reason in reasons.items()
        ]
        details.Pack(error_details_pb2.BadRequest(field_violations=violations))
        status = status_pb2.Status(code=code_pb2.INVALID_ARGUMENT, message="bad inputs", details=[details])
        context.abort_with_status(rpc_status.to_status(status))


@contextmanager
def serve(encoder: EncoderServicer, *, port: int = 0) -> Iterator[str]:
    """Serve on 127.0.0.1; yields the target."""
    server = grpc.server(ThreadPoolExecutor(64))  # each client that watches the health has a thread
    add_EncoderServicer_to_server(encoder, server)
    server.add_generic_rpc_handlers((FakeHealth(lambda: [""]).handler(),))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
