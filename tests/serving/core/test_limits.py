import re
import threading
import time
from functools import partial

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.core.encoding import TextEncoder
from serving.core.errors import ExpiredError
from serving.core.scheduler import Scheduler
from serving.endpoints import classify, fill_mask
from tasks.text import _splitter
from tasks.text import tokenizer as tokenizer_module
from tasks.text.tokenizer import Tokenizer
from tests.serving.conftest import serve
from tests.serving.grpc_api.test_statuses import refused
from tests.serving.models import write_model
from tests.serving.open_inference.messages import infer_request, stub

MOST = 32 * 250
"""Characters that a model of 32 tokens takes."""


@pytest.fixture(scope="module")
def limited(all_tasks):
    """Server with low limits."""
    with serve(all_tasks[0], max_texts=3, max_chars=5000) as running:
        yield running


def test_characters_of_a_text(server):
    """A text with more characters than its tokens can have is INVALID_ARGUMENT before it is tokenized."""
    error, fields = refused(server.stub.Embed, pb.EmbedRequest(texts=["cat", "é" * (MOST + 1), "x" * MOST]))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    reason = f"text too long: `{MOST + 1}` characters (maximum `{MOST}`); shorten it or set `truncate`"
    assert fields == {"texts[1]": reason}


def test_truncation_by_characters(server):
    """Truncated texts are cut before they are tokenized, and get the result of their beginning."""
    longer, beginning = "cat dog " * 2000, "cat dog " * 1000
    assert len(beginning) == MOST

    replies = [server.stub.Embed(pb.EmbedRequest(texts=[text], truncate=True)) for text in (longer, beginning)]

    assert replies[0].vectors == replies[1].vectors
    assert replies[0].num_tokens == [32]
    assert [reply.num_truncated for reply in replies] == [[2000 - 30 + 1], [2000 - 30]]


@pytest.mark.parametrize("truncate", [False, True])
def test_truncation_does_not_lift_the_limit_for_all_texts(limited, truncate):
    """A text above --max-chars is refused, whether or not longer texts are cut, and told only what helps."""
    request_ = pb.EmbedRequest(texts=["cat", "cat " * 1251], truncate=truncate)
    error, fields = refused(limited.stub.Embed, request_)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields == {"texts[1]": "text too long: `5004` characters (maximum `5000`); shorten it"}
    reply = limited.stub.Embed(pb.EmbedRequest(texts=["cat " * 1250], truncate=True))
    assert (reply.num_tokens, reply.num_truncated) == ([32], [1250 - 30])


@pytest.mark.parametrize(("text", "num_truncated"), [("cat" + " " * MOST + "dog", 1), ("cat" + " " * MOST, 0)])
def test_a_cut_is_never_silent(server, text, num_truncated):
    """Text that is cut before it is tokenized counts as one truncated token, unless it is white space."""
    before = server.total("bertline_truncated_total", model="embedder")

    reply = server.stub.Embed(pb.EmbedRequest(texts=["cat", text], truncate=True))

    assert reply.num_tokens == [3, 3]
    assert reply.num_truncated == [0, num_truncated]
    assert server.total("bertline_truncated_total", model="embedder") == before + num_truncated


def test_contexts(server, limited):
    """Contexts may be longer than the model's input and are never cut, up to the limit for all texts."""
    item = pb.AnswerInput(question="who", contexts=["cat", "the cat " * 625 + "sees"])
    assert len(item.contexts[1]) == 5004

    assert server.stub.Answer(pb.AnswerRequest(inputs=[item])).num_windows[0] > 100
    _, fields = refused(limited.stub.Answer, pb.AnswerRequest(inputs=[item], truncate=True))
    assert fields == {"inputs[0].contexts[1]": "text too long: `5004` characters (maximum `5000`); shorten it"}


def test_limits_come_before_work(limited, monkeypatch):
    """Texts that are too long are refused before they are split or tokenized."""

    def read(*arguments):
        raise AssertionError("it was read")

    for name in ("word_offsets", "tokenize", "tokenize_blocks"):
        monkeypatch.setattr(Tokenizer, name, read)
    tag = pb.TagRequest(inputs=[pb.TagInput(text="cat " * 2000)])
    tokenize = pb.TokenizeRequest(
        model=pb.ModelRef(name="embedder"), inputs=[pb.TextInput(text="cat", text_pair="x" * 5001)]
    )
    as_tensor = infer_request("tagger", text=["cat " * 2000])

    assert refused(limited.stub.Tag, tag)[1] == {
        "inputs[0].text": "text too long: `8000` characters (maximum `5000`); shorten it"
    }
    assert refused(limited.stub.Tokenize, tokenize)[1] == {
        "inputs[0].text_pair": "text too long: `5001` characters (maximum `5000`); shorten it"
    }
    assert refused(stub(limited, "ModelInfer"), as_tensor)[1] == {
        "text[0]": "text too long: `8000` characters (maximum `5000`); shorten it"
    }


@pytest.mark.parametrize(
    ("method", "request_", "came", "field"),
    [
        ("Embed", pb.EmbedRequest(texts=["cat"] * 4), "inputs", "inputs"),
        (
            "Answer",
            pb.AnswerRequest(inputs=[pb.AnswerInput(question="a", contexts=["b"] * 2)] * 2),
            "contexts",
            "inputs",
        ),
        ("Choose", pb.ChooseRequest(inputs=[pb.ChooseInput(choices=["cat"] * 2)] * 2), "choices", "inputs"),
        ("FillMask", pb.FillMaskRequest(texts=["[MASK]"], targets=["cat"] * 4), "targets", "targets"),
        ("FillMask", pb.FillMaskRequest(texts=["[MASK]"], targets=["unknown"] * 4), "targets", "targets"),
    ],
)
def test_numbers_of_inputs_and_parts_are_limited(limited, method, request_, came, field):
    """Inputs, choices, contexts and targets are limited in number."""
    error, violations = refused(getattr(limited.stub, method), request_)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == f"too many {came}: `4` (maximum `3`); send several requests"
    assert violations == {field: error.details()}


def test_scores_of_a_reply(server, monkeypatch):
    """A request for too many tokens at its [MASK]s, or too many labels, is INVALID_ARGUMENT before it is computed."""
    monkeypatch.setattr(fill_mask, "MAX_SCORES", 20)
    monkeypatch.setattr(classify, "MAX_SCORES", 5)
    texts, inputs, infer = (
        ["the [MASK] sees [MASK]"] * 2,
        [pb.TextInput(text="the cat")] * 2,
        stub(server, "ModelInfer"),
    )
    assert len(server.stub.FillMask(pb.FillMaskRequest(texts=texts)).results) == 2
    assert len(server.stub.Classify(pb.ClassifyRequest(inputs=inputs, top_k=2)).results) == 2
    for call, request_, message in [
        (server.stub.FillMask, pb.FillMaskRequest(texts=texts, top_k=2**32 - 1), "too many tokens requested"),
        (server.stub.FillMask, pb.FillMaskRequest(texts=texts, targets=["cat"]), "for 4 [MASK]s: `24` (maximum `20`"),
        (infer, infer_request("filler", text=texts, parameters={"top_k": 2**62}), "too many tokens requested"),
        (server.stub.Classify, pb.ClassifyRequest(inputs=inputs), "too many labels requested: `6` (maximum `5`"),
        (infer, infer_request("classifier", text=["the cat"] * 2), "too many labels requested: `6` (maximum `5`"),
    ]:
        error, _ = refused(call, request_)
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert message in error.details()


def test_a_text_that_is_far_too_long_is_read_no_further(server, monkeypatch):
    """Errors give the tokens that were read of a far too long text, and all tokens of a slightly too long one."""
    monkeypatch.setattr(tokenizer_module, "BATCH_CHARS", 200)
    monkeypatch.setattr(tokenizer_module, "PIECE_CHARS", 100)
    monkeypatch.setattr(_splitter, "PIECE_CHARS", 100)
    _, fields = refused(server.stub.Embed, pb.EmbedRequest(texts=["a " * 1000, "a " * 40]))

    assert fields.keys() == {"texts[0]", "texts[1]"}
    assert re.search(r"at least `\d{2,3}` tokens \(maximum `32`\)", fields["texts[0]"])
    assert "`42` tokens (maximum `32`)" in fields["texts[1]"]


TOO_LONG = {
    "Tag": pb.TagRequest(inputs=[pb.TagInput(text="." * 300_000)] * 3),
    "Answer": pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=["." * 299_000, "." * 300_000])]),
    "Embed": pb.EmbedRequest(texts=["." * 299_000, "." * 300_000], windows=True),
}


def test_too_long_wait_is_refused_during_tokenization(all_tasks, monkeypatch):
    """A request is refused during tokenization as soon as its estimated wait is too long."""
    read, with_progress = [], Tokenizer.with_progress
    with serve(all_tasks[0], max_queue_s=0.002) as running:
        monkeypatch.setattr(
            Tokenizer,
            "with_progress",
            lambda self, watch, *more: with_progress(self, lambda n: read.append(n) or watch(n), *more),
        )
        for method, request_ in TOO_LONG.items():
            read.clear()
            error, _ = refused(getattr(running.stub, method), request_)

            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "send fewer inputs per call" in error.details()
            assert 0 < sum(read) < 300_000
        assert running.total("bertline_rejected_total", reason="request_too_large") == len(TOO_LONG)


WINDOWED = {
    "Tag": lambda text: pb.TagRequest(inputs=[pb.TagInput(text=text)] * 2),
    "Tag of words": lambda text: pb.TagRequest(inputs=[pb.TagInput(words=text.split())] * 2),
    "Answer": lambda text: pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=[text] * 2)]),
    "Embed": lambda text: pb.EmbedRequest(texts=[text] * 2, windows=True),
}


@pytest.mark.parametrize("method", WINDOWED)
def test_windows_of_a_request(server, monkeypatch, method):
    """A request with too many windows is INVALID_ARGUMENT before they are made; the largest allowed number works."""
    call, request_ = getattr(server.stub, method.split()[0]), WINDOWED[method]("the cat " * 600)
    num_windows = sum(call(request_).num_windows)
    monkeypatch.setattr("serving.core.encoding.MAX_WINDOWS", num_windows)
    assert sum(call(request_).num_windows) == num_windows
    monkeypatch.setattr("serving.core.encoding.MAX_WINDOWS", num_windows // 2 - 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokenizer, "assemble", lambda *arguments: pytest.fail("it was made"))
        error, fields = refused(call, request_)

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == (
        f"the texts need more than {num_windows // 2 - 1} windows, the maximum of a request; "
        "send fewer or shorter texts"
    )
    assert fields == {"inputs": error.details()}


def test_windows_need_memory_of_the_budget(all_tasks):
    """A request is refused if its windows do not fit into memory, and frees its memory."""
    request_ = WINDOWED["Tag"]("." * 4_000)
    with serve(all_tasks[0], max_request_bytes=2**20, buffer_bytes=4 * 2**20, max_queue_s=1000) as running:
        assert sum(running.stub.Tag(request_).num_windows) > 400
        calls = [running.stub.Tag.future(request_) for _ in range(8)]
        codes = {call.code() for call in calls}
        assert codes == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert any("no room" in call.details() for call in calls if call.code() is not grpc.StatusCode.OK)
        assert len(running.stub.Tag(request_, timeout=20).results) == 2
        running.wait_for("bertline_queue_sequences", 0)


@pytest.mark.parametrize("method", ["Tag", "Classify"])
def test_reading_ends_with_the_deadline(server, monkeypatch, method):
    """Encoding stops when the deadline passes."""
    ended = threading.Event()
    encode = TextEncoder.encode

    def recorded(*arguments, **options):
        try:
            return encode(*arguments, **options)
        except ExpiredError:
            ended.set()
            raise

    def slowly(self, texts, *, ids_only):
        time.sleep(0.05)
        return read(self, texts, ids_only=ids_only)

    read = Tokenizer._encode
    monkeypatch.setattr(Tokenizer, "_encode", slowly)
    monkeypatch.setattr(TextEncoder, "encode", recorded)
    monkeypatch.setattr(Scheduler, "check", lambda *_, **__: None)  # on a slow machine it refuses such a short deadline
    requests = {
        "Tag": pb.TagRequest(inputs=[pb.TagInput(text="cat " * 200_000)]),
        "Classify": pb.ClassifyRequest(inputs=[pb.TextInput(text=f"{n} " * 3000) for n in range(100)], truncate=True),
    }
    error, _ = refused(partial(getattr(server.stub, method), timeout=0.3), requests[method])

    assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert ended.wait(10)


def test_texts_are_cut_as_the_model_was_evaluated(tmp_path):
    """Requests without `truncate` use the manifest's default in both protocols, and replies count removed tokens."""
    write_model(tmp_path, "cut", truncate=True)
    write_model(tmp_path, "whole")
    long = "cat " * 40
    with serve(tmp_path) as running:
        reply = running.stub.Embed(pb.EmbedRequest(texts=[long], model={"name": "cut"}))
        requested = running.stub.Embed(pb.EmbedRequest(texts=[long], model={"name": "whole"}, truncate=True))
        response = stub(running, "ModelInfer")(infer_request("cut", text=[long]))

        assert (list(reply.num_truncated), reply.vectors) == ([10], requested.vectors)
        assert response.parameters["num_truncated"].int64_param == 10
        for request in (
            pb.EmbedRequest(texts=[long], model={"name": "cut"}, truncate=False),
            pb.EmbedRequest(texts=[long], model={"name": "whole"}),
        ):
            error, fields = refused(running.stub.Embed, request)
            assert (error.code(), list(fields)) == (grpc.StatusCode.INVALID_ARGUMENT, ["texts[0]"])
        with pytest.raises(grpc.RpcError, match="too long"):
            stub(running, "ModelInfer")(infer_request("cut", text=[long], parameters={"truncate": False}))
