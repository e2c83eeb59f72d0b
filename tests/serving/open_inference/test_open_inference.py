import asyncio
import json
import threading

import grpc
import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as bertline
from serving.core.codec_pool import SMALL_BYTES
from serving.core.models import Models, Version
from serving.open_inference import tensors
from serving.open_inference.service import METHODS
from tasks import settings_from_dict
from tasks.classification import ClassificationExample
from tasks.features import collate
from tests.serving.conftest import serve
from tests.serving.models import VOCAB, write_model
from tests.serving.open_inference.messages import arrays, call, infer, infer_request, stub

TEXTS = ["the cat sees the dog .", "river", "who likes the small red bird ?", "unknowable cats"]
CONTEXTS = ["the cat sees the old dog near the river . " * 3, "a bird", "trees"]
REQUESTS = {
    "embedder": {"text": TEXTS},
    "classifier": {"text": TEXTS[:2], "text_pair": TEXTS[2:]},
    "reader": {"question": ["who sees the dog ?"] * 3, "context": CONTEXTS},
    "filler": {"text": ["the [MASK] sees", "[MASK] likes [MASK] ."]},
}


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """Server of models with a default prompt, several labels a text, a padded vocabulary, and two versions."""
    models = tmp_path_factory.mktemp("variants")
    prompts = {"max_seq_length": 32, "prompts": {"query": "the old "}}
    labels = {"max_seq_length": 32, "labels": ["no", "maybe", "yes"], "problem_type": "multi_label_classification"}
    for version in ("9", "10"):
        write_model(models, "plain", version, settings=settings_from_dict("embedding", prompts))
    asking = settings_from_dict("embedding", prompts | {"default_prompt_name": "query"})
    write_model(models, "asking", settings=asking)
    sets = settings_from_dict("classification", labels | {"thresholds": [0.9, 0.1, 0.5]})
    write_model(models, "sets", task="classification", seed=1, settings=sets)
    write_model(models, "padded", task="masked-lm", vocab_size=10 * len(VOCAB))
    with serve(models) as running:
        yield running


def ids_of(reference, examples):
    """Return padded token ids of examples with the names of the inputs, and their features."""
    features = [item for windows in reference.task.encode(examples) for item in windows]
    return collate(features, pad_id=7), features


@pytest.mark.parametrize(
    ("parameters", "fields"),
    [
        ({"normalize": True}, {"normalize": True}),
        ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"prompt_name": ""}, {"prompt_name": ""}),
        ({"input_type": "query"}, {"input_type": "INPUT_TYPE_QUERY"}),
        ({"input_type": "document"}, {"input_type": "INPUT_TYPE_DOCUMENT"}),
    ],
)
def test_embedding(server, parameters, fields):
    """Vectors equal those of Embed, and parameters do what the fields of its request do."""
    reply = server.stub.Embed(bertline.EmbedRequest(texts=TEXTS, **fields))

    found = infer(server, "embedder", text=TEXTS, parameters=parameters)

    assert found["embedding"].shape == (4, 8)
    np.testing.assert_allclose(found["embedding"].ravel(), np.frombuffer(reply.vectors, "<f4"), rtol=1e-6)


def test_a_default_prompt(variants):
    """Without `prompt_name` texts get the default prompt of the highest version, and with an empty one none."""
    reply = stub(variants, "ModelInfer")(infer_request("plain", text=TEXTS))
    plain, prompted = arrays(reply)["embedding"], infer(variants, "asking", text=TEXTS)["embedding"]
    bare = infer(variants, "asking", text=TEXTS, parameters={"prompt_name": ""})["embedding"]
    named = infer(variants, "plain", text=TEXTS, parameters={"prompt_name": "query"})["embedding"]

    np.testing.assert_allclose(prompted, named, rtol=1e-6)
    np.testing.assert_allclose(bare, plain, rtol=1e-6)
    assert np.abs(prompted - plain).max() > 1e-3
    assert reply.model_version == "10"  # the highest by number
    assert list(call(variants, "ModelMetadata", name="plain").versions) == ["9", "10"]


def test_classification(server):
    """Labels and scores equal those of Classify, ranked by score, and top_k keeps the first ones."""
    inputs = [bertline.TextInput(text=a, text_pair=b) for a, b in zip(TEXTS[:2], TEXTS[2:], strict=True)]
    reply = server.stub.Classify(bertline.ClassifyRequest(inputs=inputs))

    found = infer(server, "classifier", **REQUESTS["classifier"])
    best = infer(server, "classifier", **REQUESTS["classifier"], parameters={"top_k": 1})

    assert found["label"].tolist() == [[item.label for item in result.labels] for result in reply.results]
    expected = [[item.score for item in result.labels] for result in reply.results]
    np.testing.assert_allclose(found["score"], expected, rtol=1e-6)
    assert best["label"].tolist() == found["label"][:, :1].tolist()


@pytest.mark.parametrize("top_k", [None, 1])
def test_multi_label_classification(variants, top_k):
    """A multi-label model has one more output, which labels are selected; shorter rows are padded."""
    parameters = {} if top_k is None else {"top_k": top_k}
    request = bertline.ClassifyRequest(
        model=bertline.ModelRef(name="sets"), inputs=[bertline.TextInput(text=text) for text in TEXTS], top_k=top_k
    )
    expected = variants.stub.Classify(request)

    found = infer(variants, "sets", text=TEXTS, parameters=parameters)

    assert found["selected"].dtype == bool
    for row, result in enumerate(expected.results):
        count = len(result.labels)
        assert found["label"][row, :count].tolist() == [item.label for item in result.labels]
        assert found["score"][row, :count].tolist() == [item.score for item in result.labels]
        assert found["selected"][row, :count].tolist() == [item.selected for item in result.labels]
        assert not found["score"][row, count:].any()


def test_spans_equal_answer(server):
    """Spans equal those of Answer, and rows with fewer spans are padded."""
    inputs = [bertline.AnswerInput(question="who sees the dog ?", contexts=[context]) for context in CONTEXTS]
    reply = server.stub.Answer(bertline.AnswerRequest(inputs=inputs, top_k=4))

    found = infer(server, "reader", **REQUESTS["reader"], parameters={"top_k": 4})

    assert found["num_spans"].tolist() == [len(result.spans) for result in reply.results]
    assert len(set(found["num_spans"])) > 1
    assert found["has_answer"].tolist() == [result.has_answer for result in reply.results]
    expected = [result.no_answer_score for result in reply.results]
    np.testing.assert_allclose(found["no_answer_score"], expected, rtol=1e-6)
    for row, result in enumerate(reply.results):
        count = len(result.spans)
        for name, field in {"answer": "text", "start": "start", "end": "end"}.items():
            assert found[name][row, :count].tolist() == [getattr(span, field) for span in result.spans]
        np.testing.assert_allclose(found["score"][row, :count], [span.score for span in result.spans], rtol=1e-6)
        assert not found["score"][row, count:].any()


def test_masked_lm(server):
    """Tokens equal those of FillMask, with a row for each [MASK]."""
    texts = REQUESTS["filler"]["text"]
    reply = server.stub.FillMask(bertline.FillMaskRequest(texts=texts, top_k=3))

    found = infer(server, "filler", text=texts, parameters={"top_k": 3})

    assert found["num_masks"].tolist() == [1, 2]
    masks = [mask for result in reply.results for mask in result.masks]
    assert found["token"].tolist() == [[item.token for item in mask.tokens] for mask in masks]
    np.testing.assert_allclose(found["score"], [[item.score for item in mask.tokens] for mask in masks], rtol=1e-6)


@pytest.mark.parametrize("parameters", [{}, {"top_k": 3}, {"prompt_name": "query"}, {"input_type": "query"}])
def test_sparse_embedding(server, parameters):
    """Weights equal those of EmbedSparse; shorter rows are padded with 0."""
    fields = {
        name: value.replace("query", "INPUT_TYPE_QUERY") if name == "input_type" else value
        for name, value in parameters.items()
    }
    reply = server.stub.EmbedSparse(bertline.EmbedSparseRequest(texts=TEXTS, **fields))

    found = infer(server, "sparse", text=TEXTS, parameters=parameters)

    assert found["num_weights"].tolist() == [len(item.indices) for item in reply.results]
    for row, item in enumerate(reply.results):
        count = len(item.indices)
        assert found["index"][row, :count].tolist() == list(item.indices)
        np.testing.assert_allclose(found["weight"][row, :count], item.values, rtol=1e-6)
        assert not found["weight"][row, count:].any()


@pytest.mark.parametrize("parameters", [{}, {"input_type": "query", "truncate": True}, {"prompt_name": ""}])
def test_token_embedding(server, parameters):
    """Vectors equal those of EmbedTokens; shorter texts are padded with 0."""
    texts = ["the cat sees the dog .", "river"]
    fields = parameters | ({"input_type": "INPUT_TYPE_QUERY"} if "input_type" in parameters else {})
    reply = server.stub.EmbedTokens(bertline.EmbedTokensRequest(texts=texts, **fields))

    found = infer(server, "tokens", text=texts, parameters=parameters)

    counts = [len(item.vectors) // 32 for item in reply.results]
    assert found["num_vectors"].tolist() == counts
    assert found["embedding"].shape == (2, max(counts), 8)
    for row, item, count in zip(found["embedding"], reply.results, counts, strict=True):
        np.testing.assert_allclose(row[:count].ravel(), np.frombuffer(item.vectors, "<f4"), rtol=1e-6)
        assert not row[count:].any()


def test_padding_of_a_vocabulary_is_no_token(variants):
    """FillMask and ModelInfer return the same top_k tokens, and never ids that the tokenizer lacks."""
    reply = variants.stub.FillMask(bertline.FillMaskRequest(texts=["the [MASK] sees"], top_k=4))
    found = infer(variants, "padded", text=["the [MASK] sees"], parameters={"top_k": 4})

    tokens = reply.results[0].masks[0].tokens

    assert len(tokens) == 4
    assert found["token"].tolist() == [[item.token for item in tokens]]
    np.testing.assert_allclose(found["score"], [[item.score for item in tokens]], rtol=1e-6)


@pytest.mark.parametrize("model", REQUESTS)
def test_typed_contents(server, model):
    """Typed contents and a column of texts return the same as raw contents."""
    raw = infer(server, model, **REQUESTS[model])
    typed = infer(server, model, **REQUESTS[model], typed=True)
    column = infer(server, model, **{name: [[text] for text in texts] for name, texts in REQUESTS[model].items()})

    assert raw.keys() == typed.keys() == column.keys()
    for name, array in raw.items():
        np.testing.assert_array_equal(array, typed[name])
        np.testing.assert_array_equal(array, column[name])


@pytest.mark.parametrize("typed", [False, True])
@pytest.mark.parametrize("dtype", ["<i4", "<i8"])
def test_token_ids(server, references, dtype, typed):
    """Token ids give the outputs of the graph, for any values in the padding."""
    reference = references["classifier"]
    padded, features = ids_of(reference, [ClassificationExample(*TEXTS[:2]), ClassificationExample("river")])

    found = infer(server, "classifier", typed=typed, **{name: item.astype(dtype) for name, item in padded.items()})

    np.testing.assert_allclose(found["logits"], [reference.outputs(item)["logits"] for item in features], rtol=1e-4)


@pytest.mark.parametrize("model", ["reader", "filler"])
def test_outputs_per_token(server, references, model):
    """Outputs per token have the shape of the ids, with zeros where there is padding."""
    reference = references[model]
    ids = np.array([[2, 8, 9, 10, 3], [2, 11, 3, 0, 0]])
    mask = (ids != 0).astype(np.int64)

    found = infer(server, model, input_ids=ids, attention_mask=mask)

    for row, length in enumerate((5, 3)):
        assemble = reference.task.tokenizer.assemble
        expected = reference.outputs(type("Row", (), assemble(ids[row, 1 : length - 1])))
        for name, array in found.items():
            np.testing.assert_allclose(array[row, :length], expected[name], rtol=1e-4)
            assert array.shape[:2] == ids.shape
            assert not array[row, length:].any()


def test_requested_outputs(server):
    """Responses have the requested outputs in their order, and the id of the request."""
    request = infer_request("reader", **REQUESTS["reader"], outputs=["end", "answer"])
    request.id = "a \N{OWL}"
    request.model_version = "1"

    reply = stub(server, "ModelInfer")(request)

    assert [item.name for item in reply.outputs] == ["end", "answer"]
    assert (reply.id, reply.model_name, reply.model_version) == (request.id, "reader", "1")


@pytest.mark.parametrize(("lengths", "cut"), [((30, 3), 0), ((100, 32), 72)])
def test_truncate(server, lengths, cut):
    """Texts that are too long are cut with `truncate`; a parameter has the number of removed tokens, unless it is 0."""
    request = infer_request("embedder", text=["cat " * length for length in lengths], parameters={"truncate": True})
    reply = stub(server, "ModelInfer")(request)
    expected = infer(server, "embedder", text=["cat " * min(length, 30) for length in lengths])["embedding"]

    assert {name: value.int64_param for name, value in reply.parameters.items()} == (
        {"num_truncated": cut} if cut else {}
    )
    np.testing.assert_array_equal(arrays(reply)["embedding"], expected)


@pytest.mark.parametrize(("model", "shape"), [("embedder", (0, 8)), ("classifier", (0, 1)), ("filler", (0, 1))])
def test_no_texts_give_empty_outputs(server, model, shape):
    """Without texts, the outputs are empty."""
    found = infer(server, model, text=[])

    assert next(iter(found.values())).shape == shape


@pytest.mark.parametrize("model", REQUESTS)
def test_metadata(server, references, model):
    """Metadata and configuration describe the tensors of responses, with their shapes."""
    metadata = call(server, "ModelMetadata", name=model)
    config = call(server, "ModelConfig", name=model).config
    ids = np.array([[2, 8, 9, 3]])
    replies = [infer_request(model, **REQUESTS[model]), infer_request(model, input_ids=ids)]
    outputs = [item for request in replies for item in stub(server, "ModelInfer")(request).outputs]

    assert (metadata.name, list(metadata.versions), metadata.platform) == (model, ["1"], "onnxruntime_onnx")
    assert [item.name for item in metadata.inputs][-3:] == ["input_ids", "attention_mask", "token_type_ids"]
    assert set(REQUESTS[model]) <= {item.name for item in metadata.inputs if item.datatype == "BYTES"}
    assert [item.name for item in metadata.outputs] == [item.name for item in outputs]
    for described, came in zip(metadata.outputs, outputs, strict=True):
        assert described.datatype == came.datatype
        assert all(size in (-1, real) for size, real in zip(described.shape, came.shape, strict=True))
    assert [item.name for item in config.input] == [item.name for item in metadata.inputs]
    assert [list(item.dims) for item in config.output] == [list(item.shape) for item in metadata.outputs]


def test_server_metadata_and_repository_index(server):
    """ServerMetadata, ServerReady and RepositoryIndex give the name, readiness and loaded models."""
    metadata = call(server, "ServerMetadata")
    index = call(server, "RepositoryIndex", ready=True)

    assert metadata.name == "bertline"
    assert metadata.version
    assert call(server, "ServerLive").live
    assert call(server, "ServerReady").ready
    assert [(item.name, item.version, item.state) for item in index.models] == [
        (name, "1", "READY")
        for name in ("chooser", "classifier", "embedder", "filler", "reader", "scorer", "sparse", "tagger", "tokens")
    ]


def test_readiness(embedder):
    """Until the models are loaded, nothing is ready and other calls are UNAVAILABLE; later, versions are one by one.

    A version that is loading is not ready, and nothing is while workers have a problem.
    """
    with serve(embedder, load=False) as running:
        server = running.server
        assert call(running, "ServerLive").live
        assert not call(running, "ServerReady").ready
        assert not call(running, "ModelReady", name="embedder").ready
        for method in set(METHODS) - {"ServerLive", "ServerReady", "ModelReady"}:
            with pytest.raises(grpc.RpcError, match="starting") as caught:
                call(running, method)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        asyncio.run_coroutine_threadsafe(server.load(), running.loop).result(30)
        loading = Models([*server._repository.models.versions, Version("embedder", "2")])

        async def publish(problem):
            server._worker_problem = problem
            server._publish(loading)

        asyncio.run_coroutine_threadsafe(publish(""), running.loop).result(10)
        found = [call(running, "ModelReady", name="embedder", version=version).ready for version in ("", "1", "2", "3")]
        asyncio.run_coroutine_threadsafe(publish("a batch takes long"), running.loop).result(10)

        assert found == [True, True, False, False]
        assert not call(running, "ModelReady", name="embedder").ready
        assert not call(running, "ServerReady").ready


def test_token_ids_use_the_common_queue(slow_models, monkeypatch):
    """Rows of ids use the common queue: they are refused if it is full, and dropped at their deadline."""
    rows = np.full((8, 32), 8)
    with serve(slow_models, workers=1, max_batch_tokens=32, max_queue_s=5.12001) as running:
        monkeypatch.setattr("serving.core.latency_model.LatencyModel.seconds_per_token", lambda self, model: 1e-9)
        many = infer_request("slow", input_ids=np.repeat(rows, 8, axis=0))
        late = stub(running, "ModelInfer").future(many, timeout=0.5)
        running.wait_for("bertline_queue_tokens", 1)
        monkeypatch.setattr("serving.core.latency_model.LatencyModel.seconds_per_token", lambda self, model: 0.01)
        full = stub(running, "ModelInfer").future(infer_request("slow", input_ids=np.repeat(rows, 3, axis=0)))

        assert full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        running.wait_for("bertline_cancelled_total", 1)


@pytest.mark.parametrize(("num_rows", "thread"), [(2, "loop"), (8, "codec")])
def test_large_replies_do_not_stall_others(server, monkeypatch, num_rows, thread):
    """Replies with many logits are serialised in a thread, even for a small request."""
    made_in = []

    def response(*arguments):
        made_in.append(threading.current_thread())
        return tensors.response(*arguments)

    monkeypatch.setattr("serving.open_inference.token_ids.response", response)
    monkeypatch.setattr("serving.core.service.OUTPUTS_PER_BYTE", 4)  # as the vocabulary is small
    rows = np.full((num_rows, 32), 8)
    assert infer_request("filler", typed=True, input_ids=rows).ByteSize() < SMALL_BYTES

    assert infer(server, "filler", typed=True, input_ids=rows)["logits"].shape == (num_rows, 32, len(VOCAB))
    assert made_in[0].name.startswith("codec") == (thread == "codec")


def test_regression_and_multiple_choice(server):
    """Numbers equal those of Regress, choices and scores those of Choose."""
    inputs = [bertline.TextInput(text=text) for text in TEXTS]
    choice = bertline.ChooseInput(question="who runs ?", choices=["cat", "the dog"])

    numbers = infer(server, "scorer", text=TEXTS)
    chosen = infer(server, "chooser", question=["who runs ?"], choices=[["cat", "the dog"]])

    expected = server.stub.Regress(bertline.RegressRequest(inputs=inputs)).values
    np.testing.assert_allclose(numbers["value"], expected, rtol=1e-5)
    [result] = server.stub.Choose(bertline.ChooseRequest(inputs=[choice])).results
    assert chosen["choice"] == [result.choice]
    np.testing.assert_allclose(chosen["score"], [result.scores], rtol=1e-5)


def test_tagging(server):
    """Entities and tags of words are those of Tag, as JSON, with offsets in the original text."""
    text = " the  big\tcat runs, and the old dog sees a bird near the river."
    [result] = server.stub.Tag(bertline.TagRequest(inputs=[bertline.TagInput(text=text)], return_words=True)).results

    found = infer(server, "tagger", text=[text])
    entities, tags = (json.loads(found[name][0]) for name in ("entities", "tags"))

    assert result.entities
    assert [(item["type"], item["start"], item["end"], item["text"]) for item in entities] == [
        (item.label, item.start, item.end, text[item.start : item.end]) for item in result.entities
    ]
    assert [item["word"] for item in tags] == [text[item["start"] : item["end"]] for item in tags]
    assert [(item["start"], item["tag"]) for item in tags] == [(item.start, item.tag) for item in result.words]


@pytest.mark.parametrize("size", [1, 5])
def test_tensors_in_parts(server, references, monkeypatch, size):
    """Outputs and token ids are the same for any number of parts in which they are converted."""
    texts, rows = ["the cat", "a dog", "who"], [[2, 9, 10, 3], [2, 11, 12, 3]]
    raw = infer(server, "embedder", input_ids=rows)["sentence_embedding"]
    monkeypatch.setattr(tensors, "COPIED_ELEMENTS", size)
    monkeypatch.setattr(tensors, "CONVERTED_ELEMENTS", size)

    np.testing.assert_allclose(
        infer(server, "embedder", text=texts)["embedding"], references["embedder"].predict(texts), rtol=1e-5
    )
    np.testing.assert_array_equal(infer(server, "embedder", input_ids=rows, typed=True)["sentence_embedding"], raw)
