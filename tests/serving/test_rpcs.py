from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertline.v1 import encoder_pb2 as pb
from serving.rpcs import RPCS
from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.spans import SpanExample
from tests.serving.models import VOCAB, WORDS

TEXTS = ["the cat sees the dog .", "river", "who likes the small red bird ?", "unknowable cats"]
sentences = st.lists(st.sampled_from([*WORDS, "zebra", ".", "cats"]), min_size=1, max_size=30).map(" ".join)


def vectors(reply):
    return np.frombuffer(reply.vectors, dtype="<f4").reshape(-1, reply.dim)


def test_embed(server, references):
    """Vectors are those that numpy computes, in the order of the texts, with the model that made them."""
    reply = server.stub.Embed(pb.EmbedRequest(texts=TEXTS))

    np.testing.assert_allclose(vectors(reply), references["embedder"].predict(TEXTS), rtol=1e-5)
    assert reply.model == pb.ModelRef(name="embedder", version="1")
    assert list(reply.num_tokens) == [8, 3, 9, 5]


@pytest.mark.parametrize("normalize", [False, True])
def test_embed_options(server, references, normalize):
    """A request may name the model's pooling, and ask for vectors of length 1."""
    reply = server.stub.Embed(pb.EmbedRequest(texts=TEXTS, pooling=pb.POOLING_MEAN, normalize=normalize))

    expected = references["embedder"].predict(TEXTS, normalize=normalize)
    np.testing.assert_allclose(vectors(reply), expected, rtol=1e-5)


@pytest.mark.parametrize("method", [rpc.name for rpc in RPCS])
def test_no_inputs(server, method):
    """Without inputs the reply is empty, and still names the model."""
    reply = getattr(server.stub, method)(getattr(pb, f"{method}Request")())

    assert reply.model.version == "1"
    assert not reply.num_tokens


def test_classify(server, references):
    """All labels come with probabilities, likeliest first; an empty text_pair is not an absent one."""
    examples = [ClassificationExample(TEXTS[0]), ClassificationExample(TEXTS[0], TEXTS[2])]
    inputs = [pb.TextInput(text=TEXTS[0]), pb.TextInput(text=TEXTS[0], text_pair=TEXTS[2])]

    reply = server.stub.Classify(pb.ClassifyRequest(inputs=inputs))

    for result, prediction in zip(reply.results, references["classifier"].predict(examples), strict=True):
        assert [item.label for item in result.labels] == [label for label, _ in prediction.ranked()]
        assert [item.score for item in result.labels] == pytest.approx(
            [score for _, score in prediction.ranked()], rel=1e-5
        )
    assert list(reply.num_tokens) == [8, 16]


def test_answer(server, references):
    """Contexts longer than a window are answered with the spans that numpy finds over all windows."""
    contexts = ["the cat sees the old dog near the river . " * 3, "a bird", "trees"]
    examples = [SpanExample("who sees the dog ?", context) for context in contexts]
    inputs = [pb.AnswerInput(question=item.question, contexts=[item.context]) for item in examples]

    reply = server.stub.Answer(pb.AnswerRequest(inputs=inputs, top_k=4))

    predictions = references["reader"].predict(examples)
    for example, result, prediction in zip(examples, reply.results, predictions, strict=True):
        assert [(span.start, span.end, span.text) for span in result.spans] == [
            (span.start, span.end, span.text) for span in prediction.spans[:4]
        ]
        assert [span.score for span in result.spans] == pytest.approx(
            [span.score for span in prediction.spans[:4]], rel=1e-5
        )
        assert all(example.context[span.start : span.end] == span.text for span in result.spans)
        assert result.has_answer == prediction.has_answer
        assert result.no_answer_score == pytest.approx(prediction.no_answer_score, rel=1e-5)
    windows = references["reader"].task.encode(examples)
    assert list(reply.num_windows) == list(map(len, windows))
    assert list(reply.num_tokens) == [sum(map(len, items)) for items in windows]
    assert reply.num_windows[0] > 1


@pytest.mark.parametrize(("top_k", "expected"), [(0, 1), (1, 1), (3, 3), (1000, 5)])
def test_answer_top_k(server, top_k, expected):
    """As many spans come as were asked for, one by default, never more than the model's n_best_size."""
    item = pb.AnswerInput(question="who", contexts=["the cat sees the old dog near the river"])

    reply = server.stub.Answer(pb.AnswerRequest(inputs=[item], top_k=top_k))

    assert len(reply.results[0].spans) == expected


def test_fill_mask(server, references):
    """Each [MASK] gets its likeliest tokens, and the targets in the order of the request."""
    texts = ["the [MASK] sees", "[MASK] likes [MASK] ."]

    reply = server.stub.FillMask(pb.FillMaskRequest(texts=texts, targets=["dog", "cat"]))

    predictions = references["filler"].predict([ClozeExample(text) for text in texts])
    for result, prediction in zip(reply.results, predictions, strict=True):
        assert len(result.masks) == len(prediction.log_probs)
        for index, mask in enumerate(result.masks):
            expected = prediction.top(index, 5)
            assert [item.token for item in mask.tokens] == [VOCAB[token_id] for token_id, _ in expected]
            assert [item.score for item in mask.tokens] == pytest.approx([score for _, score in expected], rel=1e-5)
            targets = np.exp(prediction.log_probs[index][[VOCAB.index("dog"), VOCAB.index("cat")]])
            assert [item.token for item in mask.targets] == ["dog", "cat"]
            assert [item.score for item in mask.targets] == pytest.approx(list(targets), rel=1e-5)


def test_fill_mask_whole_vocabulary(server):
    """More tokens than there are is all of them, with probabilities that sum to 1."""
    reply = server.stub.FillMask(pb.FillMaskRequest(texts=["[MASK]"], top_k=2**32 - 1))

    scores = [item.score for item in reply.results[0].masks[0].tokens]
    assert len(scores) == len(VOCAB)
    assert sum(scores) == pytest.approx(1, rel=1e-5)


def test_truncate(server, references):
    """With `truncate` a text that is too long counts as its beginning."""
    reply = server.stub.Embed(pb.EmbedRequest(texts=["cat " * 100], truncate=True))

    assert list(reply.num_tokens) == [32]
    np.testing.assert_allclose(vectors(reply), references["embedder"].predict(["cat " * 30]), rtol=1e-5)


def test_list_models(server, references):
    """Every model is listed with its task, sizes, labels, digest and manifest."""
    models = {info.model.name: info for info in server.stub.ListModels(pb.ListModelsRequest()).models}

    assert {name: info.task for name, info in models.items()} == {
        name: reference.task.name for name, reference in references.items()
    }
    assert (models["embedder"].dim, models["classifier"].dim) == (8, 0)
    assert list(models["classifier"].labels) == ["no", "maybe", "yes"]
    assert models["reader"].max_seq_length == 16
    assert models["filler"].precision == "fp32"
    assert models["filler"].digest in models["filler"].manifest_json


@settings(max_examples=20, deadline=None)
@given(requests=st.lists(st.lists(sentences, min_size=1, max_size=12), min_size=1, max_size=12))
def test_concurrent_requests(server, references, requests):
    """Requests that share batches each get their own vectors."""
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(server.stub.Embed, pb.EmbedRequest(texts=texts, truncate=True)) for texts in requests]
        replies = [call.result() for call in calls]

    for texts, reply in zip(requests, replies, strict=True):
        np.testing.assert_allclose(vectors(reply), references["embedder"].predict(texts), rtol=1e-4, atol=1e-5)


def test_large_request(server, references):
    """A request of thousands of texts is answered whole."""
    texts = [" ".join(WORDS[: 1 + index % 20]) for index in range(3000)]

    reply = server.stub.Embed(pb.EmbedRequest(texts=texts))

    np.testing.assert_allclose(vectors(reply), references["embedder"].predict(texts), rtol=1e-4, atol=1e-5)
