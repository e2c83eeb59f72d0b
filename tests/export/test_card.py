"""Model cards: snippets that run, scores and notes."""

from __future__ import annotations

import ast
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from export import graph_run
from export.card import render
from export.evaluation_set import ExportData
from export.targets import TARGETS
from tasks import TASKS
from tasks.batching import predict
from tasks.bundle.files import sha256
from tasks.classification import ClassificationExample, ClassificationSettings
from tasks.masked_lm import ClozeExample
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample
from tasks.tagging import TaggingExample
from tests.export.conftest import UNTUNED, int8, save_ours
from tests.serving.conftest import serve
from training.checkpoint.task_card import CARD_FILE

CHOICES = ("One answer.", "Another answer.")
EXAMPLES = {
    "embedding": ["A text to embed.", "Another text."],
    "sparse-embedding": ["A text to embed."],
    "token-embedding": ["A text to embed."],
    "classification": [ClassificationExample("A text.")],
    "regression": [RegressionExample("A text.")],
    "multiple-choice": [MultipleChoiceExample(question="A question?", choices=CHOICES)],
    "masked-lm": [ClozeExample("The [MASK] is old.")],
    "tagging": [TaggingExample(("A", "text", "with", "names", "."))],
    "spans": [SpanExample("A question?", "A text that answers it.")],
}
"""Inputs of the snippets, by task."""


def text_of(model):
    return (model.path / CARD_FILE).read_text()


def snippet(model, library, text=None):
    """Return the code block that imports a library, with the model's path filled in."""
    found = re.findall("```python\n(.*?)```", text or text_of(model), re.DOTALL)
    (code,) = (item for item in found if library in item)
    return code.replace("path/to/this/folder", str(model.path))


def run(code):
    """Run code and return what it prints."""
    printed = []
    exec(code, {"print": printed.append})
    (found,) = printed
    return found


def expected(task, model):
    """Return the task's prediction for the card's example, in the format that the card's code prints."""
    known_task = model.load_task()
    predictions = predict(known_task, EXAMPLES[task], graph_run(model.model_path))
    return {
        "embedding": lambda: predictions,
        "sparse-embedding": lambda: tuple(map(known_task.tokenizer.token, predictions[0].indices[:5].tolist())),
        "token-embedding": lambda: predictions[0].vectors.shape,
        "regression": lambda: predictions[0],
        "classification": lambda: [predictions[0].label],
        "multiple-choice": lambda: CHOICES[predictions[0].choice],
        "masked-lm": lambda: [known_task.tokenizer.token(number) for number, _ in predictions[0].top(0, 5)],
        "tagging": lambda: list(predictions[0].tags),
        "spans": lambda: predictions[0].text,
    }[task]()


@pytest.mark.parametrize("task", sorted(EXAMPLES))
def test_onnxruntime_snippet_predicts_like_the_task(task, exported):
    """The snippet for plain ONNX Runtime gives the predictions of the task."""
    found = run(snippet(exported[task], "InferenceSession"))

    if task == "token-embedding":  # of a batch with one text
        found = found[1:]
    if task == "tagging":  # the first piece of each word
        found = [label for token, label in found if not token.startswith(("##", "[CLS]", "[SEP]"))]
    if task in ("embedding", "regression"):
        np.testing.assert_allclose(found, expected(task, exported[task]), atol=1e-4)
    else:
        assert found == expected(task, exported[task])


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_snippet_has_the_provider_options_of_the_server(target, exported):
    """The snippet sets the server's provider options; without them, CUDA computes in lower precision."""
    manifest = replace(exported["embedding"].manifest, execution=target.execution)

    (providers,) = re.findall("    providers=(.*),\n", render(manifest, 1))

    shown = manifest.in_onnx_runtime
    options = dict(shown.provider_options)
    assert ast.literal_eval(providers) == [(shown.provider, options) if options else shown.provider]


def test_every_task_has_a_card():
    """`EXAMPLES` has an example for each task."""
    assert EXAMPLES.keys() == TASKS.keys()


@pytest.mark.parametrize("unanswerable", [True, False])
@pytest.mark.parametrize("null_threshold", [-100.0, 100.0])
def test_snippet_applies_the_null_threshold(unanswerable, null_threshold, exported):
    """The snippet gives no answer where the task gives none."""
    model = exported["spans"]
    settings = replace(model.manifest.settings, unanswerable=unanswerable, null_threshold=null_threshold)
    model = replace(model, manifest=replace(model.manifest, settings=settings))

    found = run(snippet(model, "InferenceSession", render(model.manifest, 1)))

    assert found == expected("spans", model)
    assert bool(found) == (not unanswerable or null_threshold > 0)


@pytest.mark.filterwarnings("ignore")
def test_snippets_of_other_libraries_run(exported):
    """Optimum runs the graphs of all tasks that it knows, and sentence-transformers runs embeddings."""
    pytest.importorskip("optimum.onnxruntime")
    pytest.importorskip("sentence_transformers")

    vectors = run(snippet(exported["embedding"], "sentence_transformers"))
    others = EXAMPLES.keys() - {"embedding", "sparse-embedding", "token-embedding", "multiple-choice"}
    logits = {task: run(snippet(exported[task], "optimum")) for task in others}

    np.testing.assert_allclose(vectors, expected("embedding", exported["embedding"]), atol=1e-4)
    np.testing.assert_allclose(logits["regression"][0, 0], expected("regression", exported["regression"]), atol=1e-4)
    assert logits["spans"].shape == (1, logits["spans"].shape[1])
    assert "optimum" not in text_of(exported["multiple-choice"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "library"), [("plain", "sentence_transformers"), ("regression", "optimum")])
def test_snippets_of_other_libraries_are_exact_in_int8(name, library, export):
    """Server, ONNX Runtime alone and other libraries give the same outputs on every CPU."""
    pytest.importorskip("optimum.onnxruntime")
    pytest.importorskip("sentence_transformers")

    model = export(name, int8(min_cosine=0))

    code = snippet(model, library)
    assert '("session.x64quantprecision", "1")' in code
    found, alone = run(code), run(snippet(model, "InferenceSession"))
    np.testing.assert_allclose(np.squeeze(found), np.squeeze(alone), atol=1e-4)


def test_client_snippets_run(exported, tmp_path):
    """The client snippet of every card prints the task's prediction."""
    served = {task for task in EXAMPLES if "from bertline" in text_of(exported[task])}
    for task in served:
        path = exported[task].path
        shutil.copytree(path, tmp_path / path.parent.name / path.name)

    with serve(tmp_path) as server:
        for task in served:
            code = snippet(exported[task], "from bertline").replace("127.0.0.1:50051", server.target)
            found = run(code)
            if task in ("embedding", "regression"):
                np.testing.assert_allclose(found, expected(task, exported[task]), atol=1e-4)
            elif task == "multiple-choice":
                assert CHOICES[found] == expected(task, exported[task])
            else:
                assert found == expected(task, exported[task])
    assert served == EXAMPLES.keys()


def test_cards_of_pair_models_show_pairs(tmp_path, checkpoints, export):
    """A network trained on pairs gets examples with pairs, and the scores of its training."""
    settings = ClassificationSettings(max_seq_length=16, labels=("sports", "weather", "news"))
    scores = {"dev": {"accuracy": 0.75}, "majority label": {"accuracy": 0.5}}
    card = {"scores": scores, "provenance": {"text_pairs": True}}
    ours = save_ours(tmp_path / "ours", checkpoints["classification"], "classification", settings, **card)

    exported = export(ours, to="news/1")

    assert run(snippet(exported, "InferenceSession"))[0] in settings.labels
    assert '"text_pair": "Its pair."' in text_of(exported)
    assert "--model news/1 " in text_of(exported)
    assert "| majority label | 0.5000 |" in text_of(exported)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_card_lists_scores_and_data(precision, tmp_path, export):
    """The card shows the scores of PyTorch and of all precisions tried, and name and digest of the data."""
    files = {}
    for name, text in {"dev": "the cat\tnews", "other": "the bakery\tsports", "train": "going home\tnews"}.items():
        files[name] = tmp_path / name / "data.tsv"
        files[name].parent.mkdir()
        files[name].write_text(f"text\tlabel\n{text}\n")
    dev, other, train = files.values()

    config = UNTUNED if precision == "fp32" else int8(max_drop=100)
    model = export("classification", config, data=ExportData(dev=(dev, other), train=(train,)))

    text, record = text_of(model), model.manifest.provenance["data"]
    metadata = yaml.safe_load(text.split("---\n")[1])
    assert metadata["pipeline_tag"] == "text-classification"
    assert metadata["tags"] == ["bert", "bertline", "onnx", "classification"]
    assert metadata["metrics"][0] == "accuracy"
    assert "language" not in metadata
    assert "| PyTorch | " in text
    assert ("| static int8 (this graph) | " if precision == "int8" else "| fp32 (this graph) | ") in text
    assert record["evaluated_on"] == {
        "description": "2 examples of dev/data.tsv, other/data.tsv",
        "files": {"dev/data.tsv": sha256(dev), "other/data.tsv": sha256(other)},
    }
    assert ("calibrated_on" in record) == (precision == "int8")
    worst = [place for quality in model.manifest.scores["quality"].values() for place, _ in quality["worst"]]
    assert {*worst} == {"`dev/data.tsv`, line 2", "`other/data.tsv`, line 2"}
    for page in (text, (model.path / "report.html").read_text()):
        assert sha256(dev) in page
        assert sha256(other) in page
        assert (sha256(train) in page) == (precision == "int8")


@pytest.mark.parametrize("same_data", [True, False])
def test_teachers_are_rows_of_the_table(same_data, exported):
    """Teachers and the student without them are rows of the table of graphs, if they were scored on the same data."""
    manifest = exported["classification"].manifest
    scores = {"accuracy": 0.75}
    files = {"dev.tsv": "1" * 64}
    provenance = {
        **manifest.provenance,
        "training": {**manifest.provenance["training"], "data": files if same_data else {"dev.tsv": "2" * 64}},
        "data": {"evaluated_on": {"description": "10 examples", "files": files}},
    }
    of_training = {"dev": scores, "teacher, large": scores, "fine-tuned": scores}

    text = render(replace(manifest, provenance=provenance, scores={**manifest.scores, "checkpoint": of_training}), 1)

    quality, training = text.split("Scores of the checkpoint in training")
    for row in ("| teacher, large |", "| fine-tuned |"):
        assert (row in quality, row in training) == (same_data, not same_data)
    assert ("were scored in training" in quality) == same_data


@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"))).filter(str.strip))
def test_card_is_valid_for_any_label(exported, label):
    """Front matter and snippets are valid YAML and Python for any names of labels and files."""
    manifest = exported["classification"].manifest
    labels = ClassificationSettings(labels=(label, label + "2", label + "3"))
    data = {"evaluated_on": {"description": "some", "files": {label: "0" * 64}}}

    text = render(replace(manifest, settings=labels, provenance={**manifest.provenance, "data": data}), 1)

    assert yaml.safe_load(text.split("\n---\n")[0])["library_name"] == "onnx"
    for code in re.findall("```python\n(.*?)\n```\n", text, re.DOTALL):
        compile(code, "card", "exec")
