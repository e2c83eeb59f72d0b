from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export import graph_run
from tasks import TASKS


@pytest.mark.parametrize("task", TASKS)
def test_graph_has_the_documented_inputs_and_outputs(task, exported):
    """Inputs are int32 [batch, length] with dynamic axes, and outputs have the names of the task."""
    graph = onnx.load(exported[task].model_path).graph

    for value in graph.input:
        assert value.type.tensor_type.elem_type == onnx.TensorProto.INT32
        assert [bool(dim.dim_param) for dim in value.type.tensor_type.shape.dim] == [True, True]
    assert [value.name for value in graph.input] == ["input_ids", "attention_mask", "token_type_ids"]
    assert {value.name for value in graph.output} >= set(exported[task].load_task().output_names)


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
