"""Thousands of malformed messages and texts that are hard to process."""

import random
from collections import Counter

import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as pb
from tests.serving.mutations import messages, text
from tests.serving.open_inference.messages import infer
from tests.serving.reliability import check_counts, check_log, is_vector, vectors

ALLOWED = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED"}
UNDER_WAY = 50
SIZES = [1000, pytest.param(10_000, marks=pytest.mark.slow)]


def outcomes(server, items):
    """Yield (path, data, code, details) of each call, with UNDER_WAY concurrent calls."""
    stubs = {}
    under_way = []
    for path, data in items:
        call = stubs.setdefault(path, server.channel.unary_unary(path)).future(data, timeout=20)
        under_way.append((path, data, call))
        if len(under_way) == UNDER_WAY:
            yield from ((*item[:2], item[2].code().name, item[2].details()) for item in under_way)
            under_way = []
    yield from ((*item[:2], item[2].code().name, item[2].details()) for item in under_way)


@pytest.mark.parametrize("count", SIZES)
def test_malformed_messages(server, count, caplog):
    """Malformed messages to any method are answered or refused, and never INTERNAL."""
    before = {name: server.total(f"grpc_server_{name}_total") for name in ("started", "handled")}
    found = list(outcomes(server, messages(random.Random(count), count)))

    assert [item for item in found if item[2] not in ALLOWED] == []
    codes = Counter(code for _, _, code, _ in found)
    assert all(codes[code] >= count // 100 for code in ("OK", "INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED"))
    check_counts(server)
    unknown = [item for item in found if "no such method" in (item[3] or "")]
    assert server.total("grpc_server_handled_total") - before["handled"] == count - len(unknown)
    check_log(caplog.records)


def non_empty(rng, count):
    return [text(rng) + " cat" for _ in range(count)]


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_vectors_of_hard_texts(server, references, count):
    """Texts that are computed together have the vectors that they have alone."""
    texts = non_empty(random.Random(count), count)
    reply = server.stub.Embed(pb.EmbedRequest(texts=texts, truncate=True))
    alone = [server.stub.Embed.future(pb.EmbedRequest(texts=[item], truncate=True)) for item in texts]

    assert is_vector(vectors(reply), np.concatenate([vectors(item.result()) for item in alone]))
    assert is_vector(vectors(reply), references["embedder"].predict(texts))


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.slow)])
def test_offsets_are_code_points_in_difficult_texts(server, count):
    """Offsets of spans, entities, words and tokens are right in code points."""
    rng = random.Random(count)
    contexts = [[text(rng, 40) + " the cat", text(rng) + " dog"] for _ in range(count)]
    answers = server.stub.Answer(
        pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=item) for item in contexts], top_k=5)
    )
    for item, result in zip(contexts, answers.results, strict=True):
        assert result.spans
        assert all(item[span.context][span.start : span.end] == span.text != "" for span in result.spans)

    texts = [item for pair in contexts for item in pair]
    tags = server.stub.Tag(
        pb.TagRequest(inputs=[pb.TagInput(text=item) for item in texts], return_words=True, truncate=True)
    )
    for item, result in zip(texts, tags.results, strict=True):
        assert all(item[entity.start : entity.end] == entity.text != "" for entity in result.entities)
        places = [place for word in result.words for place in (word.start, word.end)]
        assert places == sorted(places)
        assert all(item[word.start : word.end].strip() for word in result.words)
    assert sum(len(result.entities) for result in tags.results) > 0

    tokens = server.stub.Tokenize(
        pb.TokenizeRequest(model=pb.ModelRef(name="embedder"), inputs=[pb.TextInput(text=item) for item in texts])
    )
    for item, result in zip(texts, tokens.results, strict=True):
        assert all(0 <= start <= end <= len(item) for start, end in zip(result.starts, result.ends, strict=True))


def test_places_in_hard_texts_of_the_open_protocol(server):
    """The Open Inference Protocol returns correct offsets of answers, too."""
    rng = random.Random(0)
    contexts = [text(rng, 40) + " the cat" for _ in range(200)]
    found = infer(server, "reader", question=["who"] * len(contexts), context=contexts, parameters={"top_k": 3})

    for row, context in enumerate(contexts):
        for place in range(found["num_spans"][row]):
            start, end = found["start"][row, place], found["end"][row, place]
            assert context[start:end] == found["answer"][row, place] != ""
