"""What a graph is made of: a network's shape, its weights as arrays, and the task whose outputs it gives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from export.storage import read_arrays
from export.variant import DECODER, WORD_EMBEDDINGS
from tasks import AnyTask
from training.model.encoder import EncoderConfig
from training.model.heads import BertModel

_LIMIT = np.float32(127)
"""Largest int8 that is used: weights are symmetric."""
DECODER_MATRIX = "mlm.decoder.weight"
"""The word embeddings as a matrix [hidden, vocabulary]; of all networks, though only masked-lm multiplies by it."""


@dataclass(frozen=True)
class Int8Matrix:
    """Whole numbers and what one of them is worth in each column."""

    values: np.ndarray
    """[in, out] int8"""
    scales: np.ndarray
    """[out] float32"""


def to_int8(matrix: np.ndarray) -> Int8Matrix:
    """Round a matrix [in, out], with a scale for each column."""
    scales = np.maximum(matrix.max(axis=0), -matrix.min(axis=0)) / _LIMIT
    scales[scales == 0] = 1
    rounded = matrix / scales
    return Int8Matrix(np.rint(rounded, out=rounded).astype(np.int8), scales)


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
    """Weights by the names that they have in `training.model.encoder`; matrices of layers as [in, out]."""

    floats: Mapping[str, np.ndarray]
    _int8: dict[str, Int8Matrix] = field(default_factory=dict)

    @classmethod
    def of(cls, model: BertModel) -> Weights:
        """Those of a network, which shares them but for the matrices of layers: all graphs share those."""
        found = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        if "mlm.bias" in found:
            found["mlm.decoder.bias"] = found["mlm.bias"]
        floats = {
            name: np.ascontiguousarray(value.T) if _is_layer(name, value) else value for name, value in found.items()
        }
        return cls(floats | {DECODER_MATRIX: found["bert.embeddings.word.weight"].T})

    @classmethod
    def of_graph(cls, path: Path) -> Weights:
        """Those of a graph of `export.graph`: each as it is there, floats or integers."""
        whole = _joined({name: _in_float32(array) for name, array in read_arrays(path).items()})
        int8 = {
            name.removesuffix(".int8"): Int8Matrix(values, whole[f"{name.removesuffix('.int8')}.scales"])
            for name, values in whole.items()
            if name.endswith(".int8")
        }
        if "bert.embeddings.word.rows" in whole:
            rows, scales = whole["bert.embeddings.word.rows"], whole["bert.embeddings.word.row_scales"]
            int8[DECODER_MATRIX] = Int8Matrix(rows.T, scales[:, 0])
        return cls(whole, int8)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.floats[name]

    def int8(self, name: str) -> Int8Matrix:
        """A matrix as integers, with a scale for each column."""
        if name not in self._int8:
            self._int8[name] = to_int8(self.floats[name])
        return self._int8[name]


def _in_float32(array: np.ndarray) -> np.ndarray:
    """Half precision loses nothing by it."""
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


def reads_only_cls(task: AnyTask) -> bool:
    """Whether [CLS] is all that is read of the last layer: but for keys and values, it computes no more."""
    return not task.token_outputs and getattr(task.settings, "pooling", "cls") == "cls"


def _is_layer(name: str, value: np.ndarray) -> bool:
    return value.ndim == 2 and not name.startswith("bert.embeddings.")


@dataclass(frozen=True)
class Network:
    """A network that does a task."""

    config: EncoderConfig
    weights: Weights
    task: AnyTask
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Of the activation that each layer takes, by the layer's name; for static and balanced int8."""
    factors: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Of balanced int8: what the channels of that activation are multiplied by first, [in]; the layer's integers are
    of a matrix that makes up for it."""

    @property
    def layers(self) -> list[str]:
        """Names of the layers whose products can be of integers, in the order in which they run."""
        kinds = ("qkv", "attention_output", "intermediate", "output")
        numbers = range(self.config.num_hidden_layers)
        layers = [f"bert.layers.{number}.{kind}" for number in numbers for kind in kinds]
        return layers + ["mlm.dense", DECODER] * (self.task.name == "masked-lm")

    @property
    def int8_parts(self) -> list[str]:
        """All that can be of integers: the layers, and the word embeddings, which of masked-lm are its last layer."""
        return [WORD_EMBEDDINGS] * (self.task.name != "masked-lm") + self.layers
