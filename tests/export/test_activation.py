"""Activation functions of cross-encoders: exported models give the scores of sentence-transformers."""

from __future__ import annotations

import json

import numpy as np
import pytest
import transformers

from export import graph_run
from export.source import read_source
from tasks.batching import predict
from tasks.regression import RegressionExample
from training.checkpoint.writer import with_activation

PAIRS = [("the cat", "a"), ("going home", "the bakery"), ("x y z", "x y z closed.")]
SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
NAMED = {
    "release 5, sigmoid": ({"sentence_transformers": {"activation_fn": SIGMOID}}, {}, "sigmoid"),
    "release 5, identity": ({"sentence_transformers": {"activation_fn": IDENTITY}}, {}, "identity"),
    "release 3, sigmoid": ({"sbert_ce_default_activation_function": SIGMOID}, {}, "sigmoid"),
    "release 3, identity": ({"sbert_ce_default_activation_function": IDENTITY}, {}, "identity"),
    "release 6, sigmoid": ({}, {"activation_fn": SIGMOID, "model_type": "CrossEncoder"}, "sigmoid"),
    "release 6, identity": ({}, {"activation_fn": IDENTITY, "model_type": "CrossEncoder"}, "identity"),
    "a label": ({"problem_type": "multi_label_classification"}, {}, "sigmoid"),
    "release 5, no function": ({"sentence_transformers": {"version": "5.2.3"}}, {}, "sigmoid"),
    "release 6, no function": ({}, {"model_type": "CrossEncoder"}, "sigmoid"),
    "no function": ({}, {}, "identity"),
    "null": ({"sbert_ce_default_activation_function": None}, {}, "identity"),
}
"""Keys of config.json and config_sentence_transformers.json, and the function that they mean."""


@pytest.fixture
def save_cross_encoder(tmp_path, save_checkpoint):
    """Save a network with one output, and keys of its configuration files."""

    def save(config, library=None):
        directory = save_checkpoint(tmp_path / "scorer", "BertForSequenceClassification", num_labels=1)
        path = directory / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | config))
        if library:
            (directory / "config_sentence_transformers.json").write_text(json.dumps(library))
        return directory

    return save


@pytest.mark.parametrize(("config", "library", "activation"), NAMED.values(), ids=NAMED)
def test_the_named_function_is_a_setting(save_cross_encoder, config, library, activation):
    """Every release's key is read; without one, the output is served as it is."""
    source = read_source(save_cross_encoder(config, library))

    assert source.task.name == "regression"
    assert source.task.settings.activation == activation


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("no function", {}, True),
        ("null", {}, True),
        ("release 3, identity", {}, False),
        ("a label", {}, False),
        ("release 5, no function", {}, False),
        ("no function", {"activation": "identity"}, False),
        ("regression", {}, False),
    ],
)
def test_a_function_that_nothing_names_gets_a_line(save_cross_encoder, name, settings, says):
    """A note states that sentence-transformers would apply a sigmoid, unless the files or a flag decide."""
    config, library, _ = NAMED.get(name, ({"problem_type": name}, None, None))

    source = read_source(save_cross_encoder(config, library), settings=settings)

    assert ("give --activation sigmoid" in source.remark) == says


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["release 5, sigmoid", "release 5, identity", "a label"])
def test_scores_are_those_of_sentence_transformers(save_cross_encoder, export, name):
    """Exported models give the scores of CrossEncoder.predict."""
    cross_encoder = pytest.importorskip("sentence_transformers").CrossEncoder
    directory = save_cross_encoder(*NAMED[name][:2])

    model = export(directory)

    theirs = cross_encoder(str(directory), device="cpu", max_length=32).predict(PAIRS)
    examples = [RegressionExample(*pair) for pair in PAIRS]
    ours = predict(model.load_task(), examples, graph_run(model.model_path))
    np.testing.assert_allclose(ours, theirs, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("named", "given"),
    [("release 5, sigmoid", None), ("release 3, identity", None), ("no function", "sigmoid"), ("a label", "identity")],
)
def test_other_libraries_apply_the_function_of_the_server(save_cross_encoder, export, named, given):
    """CrossEncoder and pipelines give the served scores from a model directory, also with --activation."""
    library, runtime = pytest.importorskip("sentence_transformers"), pytest.importorskip("optimum.onnxruntime")

    model = export(save_cross_encoder(*NAMED[named][:2]), settings={"activation": given} if given else {})

    expected = predict(model.load_task(), [RegressionExample(*pair) for pair in PAIRS], graph_run(model.model_path))
    theirs = library.CrossEncoder(str(model.path), backend="onnx", local_files_only=True)
    np.testing.assert_allclose(theirs.predict(PAIRS), expected, atol=1e-5)
    network = runtime.ORTModelForSequenceClassification.from_pretrained(model.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)
    pipeline = transformers.pipeline("text-classification", model=network, tokenizer=tokenizer)
    found = pipeline([{"text": first, "text_pair": second} for first, second in PAIRS])
    np.testing.assert_allclose([item["score"] for item in found], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "library", "message"),
    [
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh"}},
            {},
            r"unsupported activation function `torch.nn.modules.activation.Tanh` in .*transformers.activation_fn",
        ),
        ({"sbert_ce_default_activation_function": ""}, {}, r"`` in .*sbert_ce_default"),
        ({"sbert_ce_default_activation_function": "mine.Sigmoid"}, {}, r"`mine.Sigmoid` in .*sbert_ce_default"),
        (
            {"sbert_ce_default_activation_function": IDENTITY},
            {"activation_fn": SIGMOID},
            "names the function `identity`, .* `sigmoid`; give --activation",
        ),
    ],
)
def test_other_functions_are_refused(save_cross_encoder, config, library, message):
    """A function that is not understood, and two that differ, are errors of one line; a flag overrides them."""
    directory = save_cross_encoder(config, library)

    with pytest.raises(ValueError, match=message) as caught:
        read_source(directory)

    assert "\n" not in str(caught.value)
    assert read_source(directory, settings={"activation": "sigmoid"}).task.settings.activation == "sigmoid"
    before = json.loads((directory / "config.json").read_text())
    assert with_activation(before, "sigmoid")["sentence_transformers"]["activation_fn"] == SIGMOID
