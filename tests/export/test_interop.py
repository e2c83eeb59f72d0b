"""Interop: Optimum, sentence-transformers and plain ONNX Runtime load model directories."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from export import ExportConfig, export_checkpoint, graph_run
from tasks.batching import predict
from tests.export.conftest import UNTUNED

CLASSES = {
    "embedding": "ORTModelForFeatureExtraction",
    "classification": "ORTModelForSequenceClassification",
    "regression": "ORTModelForSequenceClassification",
    "tagging": "ORTModelForTokenClassification",
    "spans": "ORTModelForQuestionAnswering",
    "masked-lm": "ORTModelForMaskedLM",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("task", CLASSES)
def test_optimum_loads_model_directories(task, exported, texts):
    """Optimum gives the outputs of the graph."""
    check_optimum(exported[task], CLASSES[task], texts)


@pytest.mark.filterwarnings("ignore")
def test_optimum_loads_external_weights(tmp_path, checkpoints, texts, monkeypatch):
    """Optimum loads a graph whose weights are in a second file."""
    monkeypatch.setattr("export.storage.MAX_FILE_BYTES", 10_000)
    model = export_checkpoint(checkpoints["classification"], tmp_path / "large/1", UNTUNED)

    check_optimum(model, CLASSES["classification"], texts)


def check_optimum(model, class_name, texts):
    onnxruntime = pytest.importorskip("optimum.onnxruntime")
    theirs = getattr(onnxruntime, class_name).from_pretrained(model.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)

    arrays = tokenizer(texts, return_tensors="np", padding=True, truncation=True, max_length=32)
    found = theirs(**arrays)
    expected = graph_run(model.model_path)({name: value.astype(np.int32) for name, value in arrays.items()})

    assert [found[name] for name in expected if name in found]
    for name, values in expected.items():
        if name in found:
            np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_other_libraries_see_the_labels_of_the_server(tmp_path, checkpoints):
    """config.json has the labels of the export, not those of the checkpoint."""
    labels = ("games", "skies", "the rest")

    model = export_checkpoint(checkpoints["classification"], tmp_path / "n/1", UNTUNED, settings={"labels": labels})

    config = transformers.AutoConfig.from_pretrained(model.path)
    assert config.id2label == dict(enumerate(labels))
    assert config.label2id == {label: number for number, label in enumerate(labels)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("pooling", "max_file_bytes"), [("cls_token", 2**31), ("mean_tokens", 2**31), ("cls_token", 10_000)]
)
def test_sentence_transformers_loads_model_directories(
    pooling, max_file_bytes, tmp_path, save_sentence_transformer, texts, monkeypatch
):
    """The ONNX backend of sentence-transformers gives our vectors, for any pooling and with external weights."""
    library = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr("export.storage.MAX_FILE_BYTES", max_file_bytes)
    folder = save_sentence_transformer(tmp_path / "st", pooling=pooling)
    model = export_checkpoint(folder, tmp_path / "vectors/1", UNTUNED)

    theirs = library.SentenceTransformer(str(model.path), backend="onnx", local_files_only=True)

    expected = predict(model.load_task(), texts, graph_run(model.model_path))
    np.testing.assert_allclose(theirs.encode(texts), np.stack(expected), atol=1e-5)


def test_model_directory_is_not_a_checkpoint(tmp_path, exported):
    """A model directory cannot be exported, as its only weights are in the graph."""
    with pytest.raises(ValueError, match="is an exported model; give the checkpoint"):
        export_checkpoint(exported["embedding"].path, tmp_path / "again/1", ExportConfig(tune=False))
