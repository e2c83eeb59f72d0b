"""Weight files and number of positions of an ONNX graph, read without ONNX."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tasks.bundle.graph_file import GraphFile, read_graph_file


def external(name, location):
    tensor = TensorProto(name=name, data_type=1, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="offset", value="0")
    tensor.external_data.add(key="location", value=location)
    return tensor


def model(nodes=(), initializers=(), **fields):
    graph = helper.make_graph(list(nodes), "graph", [], [], list(initializers), **fields)
    return helper.make_model(graph)


def subgraph(location):
    inner = helper.make_graph([], "inner", [], [], [external("w", location)])
    return helper.make_node("If", ["x"], ["y"], then_branch=inner, else_branch=inner)


def function(location):
    proto = model()
    constant = helper.make_node("Constant", [], ["y"], value=external("w", location))
    proto.functions.append(helper.make_function("d", "f", [], ["y"], [constant], [helper.make_opsetid("", 17)]))
    return proto


def sparse(location):
    proto = model()
    proto.graph.sparse_initializer.add(values=external("v", location), indices=external("i", location), dims=[4])
    return proto


PLACES = {
    "initializer": lambda location: model(initializers=[external("w", location)]),
    "among others": lambda location: model(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        [numpy_helper.from_array(np.ones((300, 300), np.float32), "a"), external("b", location)],
    ),
    "attribute": lambda location: model([helper.make_node("Constant", [], ["y"], value=external("w", location))]),
    "attribute of many": lambda location: model(
        [helper.make_node("Odd", [], ["y"], values=[external("w", location), external("v", location)])]
    ),
    "subgraph": lambda location: model([subgraph(location)]),
    "function": function,
    "sparse": sparse,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("location", ["model.onnx.data", "../über/weights", "x" * 300])
def test_weight_files(tmp_path, place, location):
    """External weight files are found at every place of a graph that can have weights."""
    (tmp_path / "model.onnx").write_bytes(PLACES[place](location).SerializeToString())

    assert read_graph_file(tmp_path / "model.onnx") == GraphFile(frozenset({location}), None)


@pytest.mark.parametrize("name", ["bert.embeddings.position.weight", "roberta.embeddings.position_embeddings.weight"])
def test_positions(tmp_path, name):
    """The number of positions is the number of rows of the position table."""
    weights = [numpy_helper.from_array(np.ones((40, 2), np.float32), name), numpy_helper.from_array(np.ones(3), "w")]
    (tmp_path / "model.onnx").write_bytes(model(initializers=weights).SerializeToString())

    assert read_graph_file(tmp_path / "model.onnx") == GraphFile(frozenset(), 40)


SAMPLE = PLACES["among others"]("data").SerializeToString()[-200:] + PLACES["subgraph"]("data").SerializeToString()


@given(st.binary() | st.tuples(st.integers(0, len(SAMPLE)), st.binary(max_size=4)))
def test_random_bytes(tmp_path_factory, content):
    """Random bytes give a result without an error."""
    path = tmp_path_factory.getbasetemp() / "junk.onnx"
    if isinstance(content, tuple):
        place, other = content
        content = SAMPLE[:place] + other + SAMPLE[place:]
    path.write_bytes(content)

    assert isinstance(read_graph_file(path), GraphFile)
