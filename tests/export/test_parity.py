from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from export import graph_run
from export.parity import ParityError, check_parity, known_outputs
from export.source import read_source
from tasks.bundle.known_outputs import known_input
from tasks.features import collate
from training.checkpoint.evaluation import torch_run

CHECKPOINTS = {"embedding": "plain", "classification": "classification", "spans": "spans"}


@pytest.fixture(scope="module")
def references(checkpoints):
    """Return PyTorch's outputs for each task."""
    settings = {"spans": {"max_query_length": 16}}
    sources = {
        task: read_source(checkpoints[name], task=task, settings=settings.get(task))
        for task, name in CHECKPOINTS.items()
    }
    return {task: torch_run(source.load_model(), source.task) for task, source in sources.items()}


def change_weight(source, target, is_chosen, change):
    """Write a graph in which `change` was applied to the last weight that is chosen."""
    proto = onnx.load(source)
    tensor = next(item for item in reversed(proto.graph.initializer) if is_chosen(item))
    values = numpy_helper.to_array(tensor).copy()
    change(values)
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, target)
    return graph_run(target)


@pytest.mark.parametrize(
    ("task", "output"),
    [("embedding", "sentence_embedding"), ("classification", "logits"), ("spans", "start_logits")],
)
def test_graph_with_one_wrong_weight_is_refused(tmp_path, task, output, exported, references):
    """The error names output, difference and shape."""

    def change(weight):
        weight[0, 0] += 0.5

    graph = exported[task].model_path
    run = change_weight(graph, tmp_path / "wrong.onnx", lambda tensor: "output.weight" in tensor.name, change)

    with pytest.raises(ParityError, match=rf"`{output}` differs from PyTorch by `.*`.* in a batch of \d+ x \d+ tokens"):
        check_parity(exported[task].load_task(), references[task], run, atol=1e-4)


def test_graph_that_is_wrong_at_the_last_position_is_refused(tmp_path, exported, references):
    """The longest sequence is among the shapes that are compared."""

    def change(positions):
        positions[31] += np.arange(positions.shape[1])

    graph = exported["embedding"].model_path
    run = change_weight(graph, tmp_path / "wrong.onnx", lambda tensor: "position" in tensor.name, change)

    with pytest.raises(ParityError, match="x 32 tokens"):
        check_parity(exported["embedding"].load_task(), references["embedding"], run, atol=1e-4)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda outputs: {"sentence_embedding": outputs["sentence_embedding"][:1, :1]},
        lambda outputs: {"hidden": outputs["sentence_embedding"]},
        lambda outputs: {"sentence_embedding": outputs["sentence_embedding"] * np.nan},
    ],
)
def test_wrong_shape_name_or_nan_is_refused(spoil, exported, references):
    """Outputs of another shape or name, and NaN, are errors."""
    run = graph_run(exported["embedding"].model_path)

    with pytest.raises(ParityError, match="`sentence_embedding`"):
        check_parity(
            exported["embedding"].load_task(), references["embedding"], lambda arrays: spoil(run(arrays)), atol=1e-4
        )


@pytest.mark.parametrize("task", CHECKPOINTS)
def test_known_outputs_tell_a_wrong_graph(tmp_path, task, exported, references):
    """The manifest has PyTorch's outputs for the known input; the graph is near them, a wrong one is not."""

    def change(weight):
        weight[0, 0] += 0.5

    directory = exported[task]
    model, known, graph = directory.load_task(), directory.manifest.known_outputs, directory.model_path
    wrong = change_weight(graph, tmp_path / "wrong.onnx", lambda tensor: "output.weight" in tensor.name, change)
    arrays = collate([known_input(model.tokenizer, 32)])

    assert known == known_outputs(model, references[task], [graph_run(graph)], atol=1e-4)
    assert known.problem(references[task](arrays)) == known.problem(graph_run(graph)(arrays)) == ""
    assert "differs from the known one" in known.problem(wrong(arrays))
    own = known_outputs(model, references[task], [wrong], atol=1e-4)
    assert own.problem(wrong(arrays)) == ""
    assert all(own.atol[name] > known.atol[name] >= 1e-4 for name in known.atol)


def test_padding_is_not_compared(exported, references):
    """Outputs at padded positions may differ."""
    run = graph_run(exported["spans"].model_path)

    def with_noise(arrays):
        return {name: np.where(arrays["attention_mask"], logits, 7.0) for name, logits in run(arrays).items()}

    assert check_parity(exported["spans"].load_task(), references["spans"], with_noise, atol=1e-4)


def test_tolerance_is_relative_for_large_outputs(exported, references):
    """The tolerance grows with the size of the outputs, like rounding errors of floats."""
    task, scale, error = exported["spans"].load_task(), 0.0, 5e-4

    def of(run):
        return lambda arrays: {name: logits * scale for name, logits in run(arrays).items()}

    def with_error(arrays):
        return {name: logits + error for name, logits in of(references["spans"])(arrays).items()}

    with pytest.raises(ParityError):
        check_parity(task, of(references["spans"]), with_error, atol=1e-4)
    scale = 1e5
    check_parity(task, of(references["spans"]), with_error, atol=1e-4)


def test_long_texts_get_a_line_with_their_cost(export, monkeypatch):
    """An export of a network for long texts prints what they cost, and which flag lowers it."""
    monkeypatch.setattr("export.pipeline.LONG_TEXTS", 32)
    lines = []
    export("plain", lines=lines, settings={"max_seq_length": 33})

    expected = "texts of up to 33 tokens take minutes to compare with PyTorch, and up to 0.0 GiB each for attention"
    assert any(line.startswith(expected) and "give --max-seq-length" in line for line in lines)


def test_comparison_before_tuning_leaves_out_large_batches(exported, references):
    """The limit of tokens holds for rows and padding together."""
    task, seen = exported["embedding"].load_task(), []

    def run(arrays):
        seen.append(arrays["input_ids"].size)
        return references["embedding"](arrays)

    check_parity(task, references["embedding"], run, atol=1e-4, max_batch_tokens=64)

    assert max(seen) == 64
