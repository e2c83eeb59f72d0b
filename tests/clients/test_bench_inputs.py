"""Tests of the inputs that `bertline bench` sends to a fake server."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bertline.bench.inputs import make_payloads, read_inputs, rpc
from bertline.bench.run import bench
from bertline.bench.settings import BenchSettings
from bertline.bench.texts import SENTENCES
from bertline.jobs.sources import Format
from bertline.jobs.storage import FileError
from bertline.testing import FakeServer
from bertline.v1 import encoder_pb2 as pb
from tests.clients.command import received


def test_inputs_of_a_file_are_sent_in_turn(server: FakeServer, tmp_path: Path) -> None:
    """The texts of a file are sent in order and then again from the first, without empty lines."""
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n\u3000\ntwo\nthree\n", encoding="utf-8")
    options = {"input_path": str(path), "batch_size": 2, "num_requests": 4, "concurrency": (1,), "warm_up_s": 0.0}
    report = bench(BenchSettings(target=server.target, **options))  # type: ignore[arg-type]

    sent = [list(request.texts) for request in received(server)]
    assert sent == [["one", "two"], ["three", "one"], ["two", "three"], ["one", "two"]]
    assert (report.input_path, report.num_inputs) == (str(path), 3)


@pytest.mark.parametrize(
    ("task", "row", "sent"),
    [
        ("embedding", {"text": "a"}, pb.EmbedRequest(texts=["a"])),
        (
            "classification",
            {"text": "a", "text_pair": "b"},
            pb.ClassifyRequest(inputs=[pb.TextInput(text="a", text_pair="b")]),
        ),
        (
            "spans",
            {"question": "a?", "context": "b"},
            pb.AnswerRequest(inputs=[pb.AnswerInput(question="a?", contexts=["b"])], top_k=1),
        ),
        (
            "multiple-choice",
            {"question": "a?", "choices": ["b", "c"]},
            pb.ChooseRequest(inputs=[pb.ChooseInput(question="a?", choices=["b", "c"])]),
        ),
    ],
)
def test_inputs_of_jsonl(task: str, row: dict[str, Any], sent: Any, tmp_path: Path) -> None:
    """JSONL has the keys of the task, and the error names a line without one."""
    path = tmp_path / "inputs.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    payloads = make_payloads(task, read_inputs(task, str(path), Format.jsonl), batch_size=1, truncate=False)

    found = type(sent).FromString(payloads.items[0].body)
    found.ClearField("model")
    found.ClearField("truncate")

    assert found == sent
    path.write_text("{}\n", encoding="utf-8")
    with pytest.raises(FileError, match="line 1"):
        read_inputs(task, str(path), Format.jsonl)


def test_a_pattern_stands_for_all_its_files(tmp_path: Path) -> None:
    """A pattern gives the inputs of all its files, in the order of their names."""
    for name, text in (("b.txt", "three\n"), ("a.txt", "one\ntwo\n"), ("c.csv", "text\nfour\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")

    assert read_inputs("embedding", f"{tmp_path}/*") == ["one", "two", "three", "four"]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    """A file without texts is refused."""
    path = tmp_path / "texts.txt"
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(FileError, match="has no inputs; give a file with one text per line"):
        read_inputs("embedding", str(path))


def test_every_call_is_full() -> None:
    """Every call has the full batch size for any number of texts, and all texts are sent equally often."""
    for batch_size in (1, 5, 16, 64, 100):
        payloads = make_payloads("embedding", SENTENCES, batch_size=batch_size)
        assert {item.num_texts for item in payloads.items} == {batch_size}
        assert len(payloads.items) * batch_size % len(SENTENCES) == 0


def test_calls_are_full_of_long_texts_too() -> None:
    """Calls are full also with texts so long that the client would split them."""
    texts = [letter * 150_000 for letter in "abcd"]
    pairs = [(text, "pair") for text in texts]
    (embed,) = make_payloads("embedding", texts, batch_size=4, model="m", version="1").items
    (classify,) = make_payloads("classification", pairs, batch_size=4, model="m", version="1").items

    common = {"model": pb.ModelRef(name="m", version="1"), "truncate": True}
    inputs = [pb.TextInput(text=text, text_pair=pair) for text, pair in pairs]
    assert (embed.num_texts, classify.num_texts) == (4, 4)
    assert pb.EmbedRequest.FromString(embed.body) == pb.EmbedRequest(texts=texts, **common)
    assert pb.ClassifyRequest.FromString(classify.body) == pb.ClassifyRequest(inputs=inputs, **common)


@pytest.mark.parametrize(("num_texts", "batch_size"), [(100, 3), (100, 64), (7, 16), (65, 64), (1000, 7), (1, 8)])
def test_texts_are_sent_equally_often(num_texts: int, batch_size: int) -> None:
    """Each text is sent equally often, except for the texts that complete the last call."""
    payloads = make_payloads("embedding", [str(number) for number in range(num_texts)], batch_size=batch_size)
    texts = [text for payload in payloads.items for text in pb.EmbedRequest.FromString(payload.body).texts]
    times = Counter(texts)
    least = min(times.values())

    assert texts == [str(number % num_texts) for number in range(len(texts))]
    assert max(times.values()) <= least + 1
    assert len(texts) - least * num_texts < batch_size


def test_masks_are_put_where_there_are_none() -> None:
    """A text for FillMask gets a mask in its middle if it has none."""
    path, reply = rpc("FillMask")

    assert read_inputs("masked-lm", None, False)[1] == "how do I [MASK] my password"
    assert (path, reply) == ("/bertline.v1.Encoder/FillMask", pb.FillMaskReply)


def test_the_built_in_texts_vary() -> None:
    """The built-in texts are as long as queries, sentences and paragraphs."""
    lengths = [len(text.split()) for text in SENTENCES]

    assert min(lengths) <= 2
    assert max(lengths) >= 100
    assert len(set(SENTENCES)) == len(SENTENCES)


def test_masks_of_other_tokenizers_stay() -> None:
    """A text with a mask of another tokenizer than BERT's gets no second one."""
    texts = ["an <mask> owl", "an [MASK] owl"]
    (payload,) = make_payloads("masked-lm", texts, batch_size=2).items

    assert list(pb.FillMaskRequest.FromString(payload.body).texts) == texts
