from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from export import graph_run
from tasks.batching import predict

CLASSES = {
    "embedding": "BertModel",
    "classification": "BertForSequenceClassification",
    "spans": "BertForQuestionAnswering",
    "masked-lm": "BertForMaskedLM",
    "regression": "BertForSequenceClassification",
    "multiple-choice": "BertForMultipleChoice",
    "tagging": "BertForTokenClassification",
}
TASKS = list(CLASSES)


def transformers_outputs(task, checkpoints, arrays):
    """Return the outputs of transformers for a checkpoint."""
    directory = checkpoints["plain" if task == "embedding" else task]
    network = getattr(transformers, CLASSES[task]).from_pretrained(directory).eval()
    inputs = {name: torch.from_numpy(array).long() for name, array in arrays.items()}
    if task == "multiple-choice":
        inputs = {name: array[:, None] for name, array in inputs.items()}
    with torch.inference_mode():
        outputs = network(**inputs)
    if task == "multiple-choice":
        return {"logits": outputs.logits[:, 0].numpy()}
    if task == "embedding":
        return {"sentence_embedding": outputs.last_hidden_state[:, 0].numpy()}
    return {name: outputs[name].numpy() for name in outputs}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("rows", "length"), [(1, 1), (1, 20), (2, 7), (5, 32), (7, 3)])
def test_graph_agrees_with_transformers(task, rows, length, checkpoints, exported, random_batch):
    """The graph of a foreign checkpoint agrees with transformers on batches of any shape."""
    arrays = random_batch(rows, length)

    expected, actual = transformers_outputs(task, checkpoints, arrays), graph_run(exported[task].model_path)(arrays)

    assert actual.keys() >= expected.keys() == set(exported[task].load_task().output_names)
    mask = arrays["attention_mask"].astype(bool) if exported[task].load_task().token_outputs else ...
    for name in expected:
        np.testing.assert_allclose(actual[name][mask], expected[name][mask], atol=1e-4)


@pytest.mark.parametrize("task", TASKS)
def test_graph_has_the_documented_inputs_and_outputs(task, exported):
    """Inputs are int32 [batch, length] with dynamic axes, and outputs have the names of the task."""
    graph = onnx.load(exported[task].model_path).graph

    for value in graph.input:
        assert value.type.tensor_type.elem_type == onnx.TensorProto.INT32
        assert [bool(dim.dim_param) for dim in value.type.tensor_type.shape.dim] == [True, True]
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {value.name for value in graph.output} >= set(exported[task].load_task().output_names)


def test_embeddings_are_the_cls_vectors_of_transformers(checkpoints, exported, texts):
    """Our tokenizer, batching and pooling give the vectors of transformers."""
    network = transformers.BertModel.from_pretrained(checkpoints["plain"]).eval()
    encode = transformers.BertTokenizerFast.from_pretrained(checkpoints["plain"])
    with torch.inference_mode():
        expected = [network(**encode(text, return_tensors="pt")).last_hidden_state[0, 0].numpy() for text in texts]

    actual = predict(exported["embedding"].load_task(), texts, graph_run(exported["embedding"].model_path))

    np.testing.assert_allclose(np.stack(actual), np.stack(expected), atol=1e-4)


@settings(max_examples=25)
@given(rows=st.integers(1, 9), length=st.integers(1, 32), seed=st.integers(0, 99))
def test_outputs_do_not_depend_on_the_batch(exported, random_batch, rows, length, seed):
    """Neither other sequences nor padding change the outputs of a sequence."""
    arrays = random_batch(rows, length, seed)
    run = graph_run(exported["embedding"].model_path)
    num_tokens = int(arrays["attention_mask"][-1].sum())
    alone = {name: array[-1:, :num_tokens] for name, array in arrays.items()}

    together = run(arrays)["sentence_embedding"][-1]

    np.testing.assert_allclose(together, run(alone)["sentence_embedding"][0], atol=1e-4)


def test_missing_graph_is_a_value_error(tmp_path):
    """A missing graph is named in one line."""
    with pytest.raises(ValueError, match=r"cannot load graph `.*none\.onnx`"):
        graph_run(tmp_path / "none.onnx")
