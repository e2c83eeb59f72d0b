"""Model directories load where people already are."""

from __future__ import annotations

import numpy as np
import pytest
import transformers

from export import Wishes, export_checkpoint, ort_run
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
    """Its outputs are those of the graph; a vector is the only token of `last_hidden_state`."""
    onnxruntime = pytest.importorskip("optimum.onnxruntime")
    directory = exported[task].path
    theirs = getattr(onnxruntime, CLASSES[task]).from_pretrained(directory)
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)

    arrays = tokenizer(texts, return_tensors="np", padding=True, truncation=True, max_length=32)
    found = theirs(**arrays)
    expected = ort_run(exported[task].model_path)({name: value.astype(np.int32) for name, value in arrays.items()})

    assert [found[name] for name in expected if name in found]
    for name, values in expected.items():
        if name in found:
            np.testing.assert_allclose(found[name], values, atol=1e-5)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pooling", ["cls_token", "mean_tokens"])
def test_sentence_transformers_loads_model_directories(pooling, tmp_path, save_sentence_transformer, texts):
    """Its ONNX backend gives our vectors, whatever the pooling was."""
    library = pytest.importorskip("sentence_transformers")
    folder = save_sentence_transformer(tmp_path / "st", pooling=pooling)
    model = export_checkpoint(folder, tmp_path / "vectors/1", UNTUNED)

    theirs = library.SentenceTransformer(str(model.path), backend="onnx", local_files_only=True)

    expected = predict(model.load_task(), texts, ort_run(model.model_path))
    np.testing.assert_allclose(theirs.encode(texts), np.stack(expected), atol=1e-5)


def test_plain_onnxruntime_needs_nothing_of_ours(exported, random_batch):
    """One self-contained file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported["embedding"].model_path), providers=["CPUExecutionProvider"])

    assert session.run(["sentence_embedding"], random_batch(3, 5))[0].shape == (3, 32)


def test_model_directories_are_no_checkpoints(tmp_path, exported):
    """They hold no weights but the graph's, and say so."""
    with pytest.raises(ValueError, match="no weights in"):
        export_checkpoint(exported["embedding"].path, tmp_path / "again/1", Wishes(tune=False))
