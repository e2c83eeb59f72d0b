import asyncio
import json
import threading

import grpc
import numpy as np
import pytest

from bertline.v1 import encoder_pb2 as bertline
from serving.core.codec_pool import SMALL_BYTES
from serving.core.models import Models, Version
from serving.open_inference import task_tensors, tensors
from serving.open_inference.options import Options
from serving.open_inference.service import METHODS, SERVICE
from serving.open_inference.task_tensors import TASK_TENSORS
from tasks import TASKS, create_task, settings_from_dict
from tasks.classification import ClassificationExample
from tasks.features import collate
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import build_tokenizer
from tests.serving.conftest import serve
from tests.serving.models import SETTINGS, VOCAB, write_model
from tests.serving.open_inference.messages import call, infer, infer_request, stub

TEXTS = ["the cat sees the dog .", "river", "who likes the small red bird ?", "unknowable cats"]
CONTEXTS = ["the cat sees the old dog near the river . " * 3, "a bird", "trees"]
REQUESTS = {
    "embedder": {"text": TEXTS},
    "classifier": {"text": TEXTS[:2], "text_pair": TEXTS[2:]},
    "reader": {"question": ["who sees the dog ?"] * 3, "context": CONTEXTS},
    "filler": {"text": ["the [MASK] sees", "[MASK] likes [MASK] ."]},
}


def ids_of(reference, examples):
    """Return padded token ids of examples with the names of the inputs, and their features."""
    features = [item for windows in reference.task.encode(examples) for item in windows]
    return collate(features, pad_id=7), features


def test_embedding(server):
    """Vectors equal those of Embed."""
    reply = server.stub.Embed(bertline.EmbedRequest(texts=TEXTS, normalize=True))

    found = infer(server, "embedder", text=TEXTS, parameters={"normalize": True})

    assert found["embedding"].shape == (4, 8)
    np.testing.assert_allclose(found["embedding"].ravel(), np.frombuffer(reply.vectors, "<f4"), rtol=1e-6)


@pytest.mark.parametrize("name", ["query", "document", ""])
def test_prompts(server, name):
    """The parameter `prompt_name` gives the vectors of Embed with this prompt."""
    reply = server.stub.Embed(bertline.EmbedRequest(texts=TEXTS, prompt_name=name))

    found = infer(server, "embedder", text=TEXTS, parameters={"prompt_name": name})

    np.testing.assert_allclose(found["embedding"].ravel(), np.frombuffer(reply.vectors, "<f4"), rtol=1e-6)


@pytest.mark.parametrize("kind", ["query", "document"])
def test_input_types(server, kind):
    """The parameter `input_type` names the prompt by what the texts are."""
    found = infer(server, "embedder", text=TEXTS, parameters={"input_type": kind})["embedding"]
    expected = infer(server, "embedder", text=TEXTS, parameters={"prompt_name": kind})["embedding"]

    np.testing.assert_array_equal(found, expected)


def test_a_default_prompt(tmp_path):
    """Without `prompt_name` texts get the model's default prompt, and with an empty one none."""
    values = {"max_seq_length": 32, "prompts": {"query": "the old "}}
    settings = {"plain": values, "asking": values | {"default_prompt_name": "query"}}
    for model, one in settings.items():
        write_model(tmp_path, model, settings=settings_from_dict("embedding", one))

    with serve(tmp_path) as running:
        plain, prompted = (infer(running, name, text=TEXTS)["embedding"] for name in settings)
        bare = infer(running, "asking", text=TEXTS, parameters={"prompt_name": ""})["embedding"]
        named = infer(running, "plain", text=TEXTS, parameters={"prompt_name": "query"})["embedding"]

    np.testing.assert_allclose(prompted, named, rtol=1e-6)
    np.testing.assert_allclose(bare, plain, rtol=1e-6)
    assert np.abs(prompted - plain).max() > 1e-3


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


def test_classification_with_any_number_of_labels(tmp_path):
    """A multi-label model has one more output: which labels are selected."""
    values = {"max_seq_length": 32, "labels": ["no", "maybe", "yes"], "problem_type": "multi_label_classification"}
    settings = settings_from_dict("classification", values | {"thresholds": [0.9, 0.1, 0.5]})
    write_model(tmp_path, "sets", task="classification", seed=1, settings=settings)

    with serve(tmp_path) as running:
        inputs = [bertline.TextInput(text=text) for text in TEXTS]
        expected = running.stub.Classify(bertline.ClassifyRequest(inputs=inputs))
        found = infer(running, "sets", text=TEXTS)
        best = running.stub.Classify(bertline.ClassifyRequest(inputs=inputs, top_k=1))
        found_best = infer(running, "sets", text=TEXTS, parameters={"top_k": 1})

    for row, result in enumerate(best.results):
        count = len(result.labels)
        assert found_best["label"][row, :count].tolist() == [item.label for item in result.labels]
        assert not found_best["score"][row, count:].any()
    assert found["selected"].dtype == bool
    for row, result in enumerate(expected.results):
        assert found["label"][row].tolist() == [item.label for item in result.labels]
        assert found["score"][row].tolist() == [item.score for item in result.labels]
        assert found["selected"][row].tolist() == [item.selected for item in result.labels]


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


def test_padding_of_a_vocabulary_is_no_token(tmp_path):
    """FillMask and ModelInfer return the same top_k tokens, and never ids that the tokenizer lacks."""
    write_model(tmp_path, "padded", task="masked-lm", vocab_size=10 * len(VOCAB))
    with serve(tmp_path) as running:
        reply = running.stub.FillMask(bertline.FillMaskRequest(texts=["the [MASK] sees"], top_k=4))
        found = infer(running, "padded", text=["the [MASK] sees"], parameters={"top_k": 4})

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


def test_only_input_ids(server, references):
    """Requests without mask use every token; without token types all are 0."""
    ids, _ = ids_of(references["embedder"], TEXTS[:1])

    found = infer(server, "embedder", input_ids=ids["input_ids"])

    np.testing.assert_allclose(found["sentence_embedding"], references["embedder"].predict(TEXTS[:1]), rtol=1e-5)


def test_requested_outputs(server):
    """Responses have the requested outputs in their order, and the id of the request."""
    request = infer_request("reader", **REQUESTS["reader"], outputs=["end", "answer"])
    request.id = "a \N{OWL}"
    request.model_version = "1"

    reply = stub(server, "ModelInfer")(request)

    assert [item.name for item in reply.outputs] == ["end", "answer"]
    assert (reply.id, reply.model_name, reply.model_version) == (request.id, "reader", "1")


def test_truncate(server):
    """Texts that are too long are cut with `truncate`."""
    found = infer(server, "embedder", text=["cat " * 100], parameters={"truncate": True})

    np.testing.assert_array_equal(found["embedding"], infer(server, "embedder", text=["cat " * 30])["embedding"])


@pytest.mark.parametrize(("lengths", "cut"), [((30, 3), 0), ((100, 32), 72)])
def test_truncated_tokens_are_counted(server, lengths, cut):
    """Responses have a parameter with the number of removed tokens, unless it is 0."""
    request = infer_request("embedder", text=["cat " * length for length in lengths], parameters={"truncate": True})
    parameters = stub(server, "ModelInfer")(request).parameters

    assert {name: value.int64_param for name, value in parameters.items()} == ({"num_truncated": cut} if cut else {})


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


@pytest.mark.parametrize(
    ("name", "version", "ready"),
    [("reader", "", True), ("reader", "1", True), ("reader", "2", False), ("x", "", False)],
)
def test_model_ready(server, name, version, ready):
    """Models are ready if the requested version is loaded."""
    assert call(server, "ModelReady", name=name, version=version).ready == ready


def test_readiness_equals_health(tmp_path):
    """Versions that are loading are not ready, and nothing is ready while workers have a problem."""
    write_model(tmp_path)
    with serve(tmp_path) as running:
        server = running.server
        loading = Models([*server._repository.models.versions, Version("tiny", "2")])

        async def publish(problem):
            server._worker_problem = problem
            server._publish(loading)

        asyncio.run_coroutine_threadsafe(publish(""), running.loop).result(10)
        found = [call(running, "ModelReady", name="tiny", version=version).ready for version in ("", "1", "2", "3")]
        asyncio.run_coroutine_threadsafe(publish("a batch takes long"), running.loop).result(10)

        assert found == [True, True, False, False]
        assert not call(running, "ModelReady", name="tiny").ready
        assert not call(running, "ServerReady").ready


def test_highest_version(tmp_path):
    """Without a version the highest by number computes, and metadata lists all."""
    for version in ("9", "10"):
        write_model(tmp_path, version=version)
    with serve(tmp_path) as running:
        reply = stub(running, "ModelInfer")(infer_request("tiny", text=["cat"]))

        assert reply.model_version == "10"
        assert list(call(running, "ModelMetadata", name="tiny").versions) == ["9", "10"]


def test_starting(all_tasks):
    """Until the models are loaded the server is live but not ready, and other calls are UNAVAILABLE."""
    with serve(all_tasks[0], load=False) as running:
        assert call(running, "ServerLive").live
        assert not call(running, "ServerReady").ready
        assert not call(running, "ModelReady", name="reader").ready
        for method in set(METHODS) - {"ServerLive", "ServerReady", "ModelReady"}:
            with pytest.raises(grpc.RpcError, match="starting") as caught:
                call(running, method)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_metrics(embedder):
    """Calls are counted with their own labels, and computation like that of other calls."""
    with serve(embedder) as running:
        series = running.metrics("grpc_server_started_total")
        for method in METHODS:
            labels = {"grpc_service": SERVICE, "grpc_method": method, "grpc_type": "unary"}
            assert ("grpc_server_started_total", tuple(sorted(labels.items()))) in series
        infer(running, "embedder", text=["cat", "the cat"])
        infer(running, "embedder", input_ids=np.array([[2, 8, 9, 3]]))
        with pytest.raises(grpc.RpcError):
            infer(running, "embedder", text=[""])
        call(running, "ServerReady")

        mine = {"grpc_service": SERVICE, "grpc_method": "ModelInfer"}
        assert running.total("grpc_server_started_total") == 4
        running.wait_for("grpc_server_handled_total", 4)
        assert running.total("grpc_server_handled_total", **mine, grpc_code="OK") == 2
        assert running.total("grpc_server_handled_total", **mine, grpc_code="InvalidArgument") == 1
        assert running.total("bertline_tokens_total", model="embedder") == 3 + 4 + 4


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


def test_every_task_has_tensors():
    """Each task has tensors."""
    assert TASK_TENSORS.keys() == TASKS.keys()


def output_tensors(name, settings, outputs, row, **options):
    """Return the output tensors of a task for one row of texts and given outputs of the graph."""
    task = create_task(
        name, Tokenizer(build_tokenizer(VOCAB)), settings_from_dict(name, settings or SETTINGS.get(name, {}))
    )
    tensors = TASK_TENSORS[name]
    example = task.complete(tensors.example(row, task))
    windows = task.encode([example])[0]
    prediction = task.decode(example, windows, [outputs(window) for window in windows])
    result = tensors.result(prediction, example, Options(**options), task)
    return {name: array.tolist() for name, array in tensors.arrays([result], tensors.outputs(None)).items()}


def test_regression_tensors():
    """Regression returns a number for each text."""
    found = output_tensors("regression", {}, lambda _: {"logits": np.array([0.5])}, {"text": "cat", "text_pair": None})

    assert found == {"value": [0.5]}


def test_multiple_choice_tensors():
    """Multiple choice returns the most probable choice and the scores of all."""
    row = {"choices": ("cat", "the dog"), "context": None, "question": "who runs ?"}

    found = output_tensors("multiple-choice", {}, lambda item: {"logits": np.array(float(len(item)))}, row)

    assert found["choice"] == [1]
    assert sum(found["score"][0]) == pytest.approx(1)


def test_tagging_tensors():
    """Tagging returns entities with offsets in the original text, and the tag of each word, as JSON."""
    settings = {"labels": ["O", "B-ANIMAL", "I-ANIMAL"]}
    logits = np.eye(3, dtype=np.float32)[[0, 0, 1, 2, 0, 0, 0]] * 9

    found = output_tensors("tagging", settings, lambda _: {"logits": logits}, {"text": " the  big\tcat runs."})

    (entity,) = json.loads(found["entities"][0])

    assert entity.pop("score") > 0.99
    assert entity == {"type": "ANIMAL", "start": 6, "end": 13, "text": "big\tcat"}
    tags = json.loads(found["tags"][0])
    assert [item["word"] for item in tags] == ["the", "big", "cat", "runs", "."]
    assert [item["tag"] for item in tags] == ["O", "B-ANIMAL", "I-ANIMAL", "O", "O"]


@pytest.mark.parametrize("elements", [1, 5, 2**20])
def test_outputs_in_parts(server, references, monkeypatch, elements):
    """Outputs are the same for any number of parts in which they are copied."""
    monkeypatch.setattr(tensors, "COPIED_ELEMENTS", elements)
    texts = ["the cat", "a dog", "who"]
    found = infer(server, "embedder", text=texts)

    np.testing.assert_allclose(found["embedding"], references["embedder"].predict(texts), rtol=1e-5)


@pytest.mark.parametrize("numbers", [1, 5, 2**20])
def test_numbers_in_parts(server, monkeypatch, numbers):
    """Token ids are the same for any number of parts in which they are converted."""
    monkeypatch.setattr(tensors, "CONVERTED_ELEMENTS", numbers)
    rows = [[2, 9, 10, 3], [2, 11, 12, 3]]
    typed, raw = (infer(server, "embedder", input_ids=rows, typed=flag) for flag in (True, False))

    np.testing.assert_array_equal(typed["sentence_embedding"], raw["sentence_embedding"])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 12])
def test_long_lists_are_written_in_parts(monkeypatch, count):
    """Lists written in parts are the same JSON as whole lists."""
    monkeypatch.setattr(task_tensors, "JSON_ITEMS", 4)
    items = [{"word": 'é"字', "start": number} for number in range(count)]

    assert task_tensors._json(iter(items)) == json.dumps(items, ensure_ascii=False).encode()
