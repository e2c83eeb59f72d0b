"""ZeroShot: labels of the request, by a model for natural language inference."""

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.endpoints.zero_shot import ZeroShot
from tasks.zero_shot import create_zero_shot

TEXTS = ["the cat sees the old dog .", "a small bird"]
LABELS = ["cat", "dog", "river"]


def ask(server, texts=TEXTS, labels=LABELS, model="", **options):
    return server.stub.ZeroShot(
        pb.ZeroShotRequest(model=pb.ModelRef(name=model), texts=texts, labels=labels, **options)
    )


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("template", ["", "the {} runs"])
def test_zero_shot(server, references, template, multi_label):
    """Replies have all labels, most likely first, with the task's probabilities; the only fitting model answers."""
    reply = ask(server, template=template, multi_label=multi_label)

    reference = references["classifier"]
    task = create_zero_shot(reference.task, LABELS, template=template, multi_label=multi_label)
    windows = task.encode(TEXTS)
    for text, items, result in zip(TEXTS, windows, reply.results, strict=True):
        prediction = task.decode(text, items, [reference.outputs(item) for item in items])
        assert [item.label for item in result.labels] == [label for label, _ in prediction.ranked()]
        assert [item.score for item in result.labels] == pytest.approx(
            [score for _, score in prediction.ranked()], rel=1e-4
        )
        assert {item.label for item in result.labels if item.selected} == set(prediction.selected)
    assert reply.model.name == "classifier"
    assert list(reply.num_tokens) == [sum(map(len, items)) for items in windows]


def test_top_k(server):
    """Replies have top_k labels, and with multi_label all selected ones."""
    every = ask(server, multi_label=True).results[0].labels
    kept = ask(server, multi_label=True, top_k=1).results[0].labels
    best = ask(server, top_k=1).results[0].labels

    assert [item.label for item in kept] == [item.label for rank, item in enumerate(every) if item.selected or not rank]
    assert len(best) == 1


def test_long_texts(server):
    """A text that is too long is refused once, or cut; the sentence of the label stays whole."""
    text = "the cat sees " * 20
    with pytest.raises(grpc.RpcError) as refused:
        ask(server, [text], template="the {} runs")
    reply = ask(server, [text], template="the {} runs", truncate=True)

    assert refused.value.details().startswith("texts[0]: text too long: `")
    assert list(reply.num_tokens) == [3 * 32]
    assert list(reply.num_truncated) == [3 * (60 - (32 - 3 - 3))]


def test_labels_without_texts_cost_nothing(server):
    """Without texts, labels are not tokenized."""
    reply = ask(server, [], ["word " * 10_000, "dog"])

    assert list(reply.results) == []


def test_estimates_count_repeated_texts(server):
    """Texts and labels count as often as the model reads them, so that later estimates of Classify are right."""
    request = pb.ZeroShotRequest(texts=["a" * 100, "b" * 50], labels=["x" * 10, "y" * 20, "z"], template="{} it")
    endpoint, size = ZeroShot(), request.ByteSize()

    assert endpoint.read_bytes(request, size) == size + 3 * 150 + 2 * (31 + 3 * 5)
