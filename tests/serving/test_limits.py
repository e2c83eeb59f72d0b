import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from tests.serving.conftest import serve
from tests.serving.test_statuses import refused

MOST = 32 * 250
"""Characters that a model of 32 tokens takes."""


@pytest.fixture(scope="module")
def limited(all_tasks):
    """A server with low limits."""
    with serve(all_tasks[0], max_texts=3, max_chars=5000) as running:
        yield running


def test_texts_of_a_request(limited):
    """More inputs than a request may hold are INVALID_ARGUMENT, with both numbers."""
    assert len(limited.stub.Embed(pb.EmbedRequest(texts=["cat"] * 3)).num_tokens) == 3
    error, _ = refused(limited.stub.Embed, pb.EmbedRequest(texts=["cat"] * 4))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "4 inputs came, a request takes 3" in error.details()


def test_characters_of_a_text(server):
    """A text of more characters than its tokens can need is INVALID_ARGUMENT before it is tokenised."""
    error, fields = refused(server.stub.Embed, pb.EmbedRequest(texts=["cat", "é" * (MOST + 1), "x" * MOST]))

    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fields == {"texts[1]": f"{MOST + 1} characters came, {MOST} fit"}


def test_fields_are_named(limited):
    """Of inputs with several texts, the one that is too long is named."""
    inputs = [pb.TextInput(text="cat", text_pair="x" * 5001), pb.TextInput(text="x" * 6000)]
    _, fields = refused(limited.stub.Classify, pb.ClassifyRequest(inputs=inputs))

    assert fields.keys() == {"inputs[0].text_pair", "inputs[1].text"}


def test_truncation_by_characters(server):
    """With truncate a text is cut before it is tokenised, and its result is that of its beginning."""
    longer, beginning = "cat dog " * 2000, "cat dog " * 1000

    replies = [server.stub.Embed(pb.EmbedRequest(texts=[text], truncate=True)) for text in (longer, beginning)]

    assert replies[0].vectors == replies[1].vectors
    assert replies[0].num_tokens == [32]


def test_truncation_of_pairs(server):
    """Each text of a pair is cut."""
    item = pb.TextInput(text="cat " * 3000, text_pair="dog " * 3000)

    reply = server.stub.Classify(pb.ClassifyRequest(inputs=[item], truncate=True))

    assert reply.num_tokens == [32]


def test_contexts(server, limited):
    """Contexts are read in windows: they may be longer, and are never cut, up to the limit for all texts."""
    item = pb.AnswerInput(question="who", contexts=["cat", "the cat " * 625 + "sees"])
    assert len(item.contexts[1]) == 5004

    assert server.stub.Answer(pb.AnswerRequest(inputs=[item])).num_windows[0] > 100
    _, fields = refused(limited.stub.Answer, pb.AnswerRequest(inputs=[item], truncate=True))
    assert fields == {"inputs[0].contexts[1]": "5004 characters came, 5000 fit"}
