"""What a graph is made of: a network's shape, its weights as arrays, and the task whose outputs it gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from tasks import Task
from training.model.bert import BertConfig, BertModel

_LIMIT = np.float32(127)
"""Largest int8 that is used: weights are symmetric."""


@dataclass(frozen=True)
class Int8Matrix:
    """Whole numbers and what one of them is worth in each column."""

    values: np.ndarray
    """[in, out] int8"""
    scales: np.ndarray
    """[out] float32"""


def to_int8(matrix: np.ndarray) -> Int8Matrix:
    """Round a matrix [in, out], with a scale for each column."""
    scales = np.abs(matrix).max(axis=0) / _LIMIT
    scales[scales == 0] = 1
    return Int8Matrix(np.rint(matrix / scales).astype(np.int8), scales)


@dataclass(frozen=True)
class Range:
    """How an activation becomes uint8: x = scale * (integer - zero_point)."""

    scale: float
    zero_point: int

    @classmethod
    def between(cls, low: float, high: float) -> Range:
        """All from `low` to `high`, and zero, which is to be exact."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return cls(scale, round(-low / scale))


@dataclass(frozen=True)
class Weights:
    """Weights by the names that they have in `training.model.bert`; matrices of layers as [in, out]."""

    floats: Mapping[str, np.ndarray]
    _int8: dict[str, Int8Matrix] = field(default_factory=dict)

    @classmethod
    def of(cls, model: BertModel) -> Weights:
        """Those of a network; matrices are views of its own."""
        found = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        if "mlm.bias" in found:  # the output matrix is that of the word embeddings
            found |= {"mlm.decoder.weight": found["bert.embeddings.word.weight"], "mlm.decoder.bias": found["mlm.bias"]}
        return cls({name: value.T if _is_layer(name, value) else value for name, value in found.items()})

    @classmethod
    def of_graph(cls, path: Path) -> Weights:
        """Those of a graph of `export.graph`."""
        whole = _joined({item.name: _in_float32(item) for item in onnx.load(path).graph.initializer})
        int8 = {
            name.removesuffix(".int8"): Int8Matrix(values, whole[f"{name.removesuffix('.int8')}.scales"])
            for name, values in whole.items()
            if name.endswith(".int8")
        }
        floats = {name: matrix.values * matrix.scales for name, matrix in int8.items()}
        if "bert.embeddings.word.rows" in whole:
            rows, scales = whole["bert.embeddings.word.rows"], whole["bert.embeddings.word.row_scales"]
            floats["bert.embeddings.word.weight"] = rows * scales
        return cls(whole | floats, int8)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.floats[name]

    def int8(self, name: str) -> Int8Matrix:
        """A matrix as integers, with a scale for each column."""
        if name not in self._int8:
            self._int8[name] = to_int8(self.floats[name])
        return self._int8[name]


def _in_float32(initializer: TensorProto) -> np.ndarray:
    """Half precision loses nothing by it."""
    array = numpy_helper.to_array(initializer)
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _joined(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Arrays whose parts may have been initializers of their own, along the last axis: `name.0-384`, `name.384-768`."""
    parts: dict[str, dict[int, np.ndarray]] = {}
    for name, array in arrays.items():
        found = re.fullmatch(r"(.*)\.(\d+)-\d+(\.int8|\.scales)?", name)
        whole, start = (found[1] + (found[3] or ""), int(found[2])) if found else (name, 0)
        parts.setdefault(whole, {})[start] = array
    return {
        name: np.concatenate([pieces[start] for start in sorted(pieces)], axis=-1) if len(pieces) > 1 else pieces[0]
        for name, pieces in parts.items()
    }


def _is_layer(name: str, value: np.ndarray) -> bool:
    return value.ndim == 2 and not name.startswith("bert.embeddings.")


@dataclass(frozen=True)
class Network:
    """A network that does a task."""

    config: BertConfig
    weights: Weights
    task: Task[Any, Any, Any, Any]
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Of the activation that each layer takes, by the layer's name; for static int8."""

    @property
    def layers(self) -> list[str]:
        """Names of the layers whose products can be of integers, in the order in which they run."""
        kinds = ("qkv", "attention_output", "intermediate", "output")
        numbers = range(self.config.num_hidden_layers)
        layers = [f"bert.layers.{number}.{kind}" for number in numbers for kind in kinds]
        return layers + ["mlm.dense", "mlm.decoder"] * (self.task.name == "masked-lm")
