"""Interop: Optimum, sentence-transformers and plain ONNX Runtime load model directories."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from export import graph_run
from tasks.batching import predict

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
    model = exported[task]
    theirs = getattr(pytest.importorskip("optimum.onnxruntime"), CLASSES[task]).from_pretrained(model.path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)

    arrays = tokenizer(texts, return_tensors="np", padding=True, truncation=True, max_length=32)
    found = theirs(**arrays)
    expected = graph_run(model.model_path)({name: value.astype(np.int32) for name, value in arrays.items()})

    assert [found[name] for name in expected if name in found]
    for name, values in expected.items():
        if name in found:
            np.testing.assert_allclose(found[name], values, atol=1e-5)


def test_other_libraries_see_the_labels_of_the_server(export):
    """config.json has the labels of the export, not those of the checkpoint."""
    labels = ("games", "skies", "the rest")

    model = export("classification", settings={"labels": labels})

    config = transformers.AutoConfig.from_pretrained(model.path)
    assert config.id2label == dict(enumerate(labels))
    assert config.label2id == {label: number for number, label in enumerate(labels)}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("pooling", "max_file_bytes"), [("mean", 2**31), ("cls", 10_000)])
def test_sentence_transformers_loads_model_directories(pooling, max_file_bytes, folder, export, texts, monkeypatch):
    """The ONNX backend of sentence-transformers gives our vectors, for any pooling and with external weights."""
    library = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr("export.storage.MAX_FILE_BYTES", max_file_bytes)
    model = export(folder((pooling,), [("Normalize", {})]))

    theirs = library.SentenceTransformer(str(model.path), backend="onnx", local_files_only=True)

    expected = predict(model.load_task(), texts, graph_run(model.model_path))
    np.testing.assert_allclose(theirs.encode(texts), np.stack(expected), atol=1e-5)


def test_model_directory_is_not_a_checkpoint(exported, export):
    """A model directory cannot be exported, as its only weights are in the graph."""
    with pytest.raises(ValueError, match="is an exported model; give the checkpoint"):
        export(exported["embedding"].path)
