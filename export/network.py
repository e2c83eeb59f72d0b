"""Inputs of the graph writer: a network's config, its weights as arrays, and the task whose outputs it computes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from export.storage import read_arrays
from export.variant import DECODER, WORD_EMBEDDINGS
from tasks import AnyTask
from tasks.masked_lm import MaskedLM
from training.model.config import EncoderConfig
from training.model.disentangled_encoder import (
    DisentangledConfig,
    DisentangledEncoder,
    DisentangledLayer,
    relative_rows,
)
from training.model.encoder import distance_buckets
from training.model.heads import BertModel
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig
from training.model.rotary import rotary_frequencies, rotary_table

MASKED = {np.float32: -1e30, np.float16: -1e4}
"""Added to the attention scores of padding: softmax turns it into 0, and sums of two of it stay finite."""
RELATIVE_BIAS = "bert.relative_bias.by_distance"
"""Bias on attention scores by the distance from query to key, [heads, 2 x positions - 1]; the middle is distance 0."""
PROJECTION = "bert.embeddings.projection"
"""Layer that projects embeddings to the hidden size."""
_INT8_MAX = np.float32(127)
"""Weights are quantised symmetrically, to -127 ... 127."""
DECODER_MATRIX = "mlm.decoder.weight"
"""Word embeddings as a matrix [hidden, vocabulary]. Every network has it, but only masked-lm multiplies by it."""


@dataclass(frozen=True)
class Int8Matrix:
    """Quantised matrix with one scale per column."""

    values: np.ndarray
    """[in, out] int8"""
    scales: np.ndarray
    """[out] float32"""


def to_int8(matrix: np.ndarray) -> Int8Matrix:
    """Quantise a matrix [in, out] symmetrically, with one scale per column."""
    scales = np.maximum(matrix.max(axis=0), -matrix.min(axis=0)) / _INT8_MAX
    scales[scales == 0] = 1
    rounded = matrix / scales
    return Int8Matrix(np.rint(rounded, out=rounded).astype(np.int8), scales)


@dataclass(frozen=True)
class Range:
    """Affine quantisation of an activation to uint8: x = scale * (integer - zero_point)."""

    scale: float
    zero_point: int

    @classmethod
    def between(cls, low: float, high: float) -> Range:
        """Return the range that covers `low`, `high` and zero, and represents zero exactly."""
        low, high = min(low, 0.0), max(high, 0.0)
        scale = (high - low) / 255 or 1.0
        return cls(scale, round(-low / scale))


@dataclass(frozen=True)
class Weights:
    """Weights by their names in `training.model`; matrices of layers are [in, out]."""

    floats: Mapping[str, np.ndarray]
    _int8: dict[str, Int8Matrix] = field(default_factory=dict)

    @classmethod
    def from_model(cls, model: BertModel) -> Weights:
        """Return the weights of a PyTorch network. Only transposed matrices are copied, once for all graphs."""
        arrays = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        if model.config.type_vocab_size == 1 and model.config.has_position_embeddings:
            # All tokens have type 0: its row goes into the positions.
            arrays["bert.embeddings.position.weight"] = arrays["bert.embeddings.position.weight"] + arrays.pop(
                "bert.embeddings.token_type.weight"
            )
        if model.config.relative_attention_num_buckets:
            by_bucket = arrays.pop("bert.relative_bias.weight")  # [buckets, heads]
            buckets = distance_buckets(model.config.num_positions, len(by_bucket)).numpy()
            by_distance = np.concatenate([buckets[-1], buckets[0, 1:]])
            arrays[RELATIVE_BIAS] = np.ascontiguousarray(by_bucket[by_distance].T)
        if "mlm.bias" in arrays:
            arrays["mlm.decoder.bias"] = arrays["mlm.bias"]
        if isinstance(model.config, DisentangledConfig):
            arrays = {name: value for name, value in arrays.items() if not _RELATIVE.search(name)}
        floats = dict(arrays)
        for name, value in arrays.items():
            is_table = name.startswith("bert.embeddings.") and not name.startswith(PROJECTION)
            if value.ndim == 2 and not is_table and name != RELATIVE_BIAS:
                floats[name] = np.ascontiguousarray(value.T)
        tables = _rotary_tables(model.config)
        if isinstance(model.bert, DisentangledEncoder):
            tables |= _relative_tables(model.bert)
        return cls(floats | tables | {DECODER_MATRIX: arrays["bert.embeddings.word.weight"].T})

    @classmethod
    def from_graph(cls, path: Path) -> Weights:
        """Return the weights stored in a graph that `export.graph` wrote, floats or integers as stored."""
        arrays = _join_slices(
            {
                name: array.astype(np.float32) if array.dtype == np.float16 else array
                for name, array in read_arrays(path).items()
            }
        )
        int8 = {
            name.removesuffix(".int8"): Int8Matrix(values, arrays[f"{name.removesuffix('.int8')}.scales"])
            for name, values in arrays.items()
            if name.endswith(".int8")
        }
        if "bert.embeddings.word.rows" in arrays:
            rows, scales = arrays["bert.embeddings.word.rows"], arrays["bert.embeddings.word.row_scales"]
            int8[DECODER_MATRIX] = Int8Matrix(rows.T, scales[:, 0])
        return cls(arrays, int8)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.floats[name]

    def __contains__(self, name: str) -> bool:
        return name in self.floats

    @property
    def num_positions(self) -> int:
        """Number of positions that have a row in a table."""
        return len(next(self.floats[name] for name in _POSITION_TABLES if name in self.floats))

    def int8(self, name: str) -> Int8Matrix:
        """Return a matrix as integers with one scale per column, quantised once."""
        if name not in self._int8:
            self._int8[name] = to_int8(self.floats[name])
        return self._int8[name]


def rotary_name(part: str, *, local: bool = False) -> str:
    """Return the name of a table of rotary positions [positions, half the head size], of local or global layers.

    Args:
        part: `cos` or `sin`, or `frequencies` for one row of `rotary_frequencies` by the length of a text.
    """
    return f"bert.rotary.{'local' if local else 'global'}.{part}"


def _rotary_tables(config: EncoderConfig) -> dict[str, np.ndarray]:
    """Return the tables of rotary positions, if a network has them."""
    if isinstance(config, ModernBertConfig):
        by_kind = {local: config.frequencies(local=local) for local in (False, True)}
    elif not isinstance(config, NomicBertConfig):
        return {}
    elif config.scales_positions:
        lengths = torch.arange(1, config.num_positions + 1)
        return {rotary_name("frequencies"): config.frequencies(lengths).numpy()}
    else:
        by_kind = {False: rotary_frequencies(config.head_size, config.rope_theta)}
    return {
        rotary_name(part, local=local): table.numpy()
        for local, frequencies in by_kind.items()
        for part, table in zip(("cos", "sin"), rotary_table(config.num_positions, frequencies), strict=True)
    }


RELATIVE_BUCKETS = "bert.relative.buckets"
"""Bucket of each distance, int64 [positions]; a bucket and its negative are rows from the middle of the tables."""
_RELATIVE = re.compile(r"\.(relative|relative_norm|position_key|position_query)\.")
"""Weights that `_relative_tables` replaces."""


def relative_name(layer: str, part: str) -> str:
    """Return the name of a table [heads, rows, head size] of relative embeddings, as `keys` or as `queries`."""
    return f"{layer}.relative_{part}"


@torch.no_grad()
def _relative_tables(encoder: DisentangledEncoder) -> dict[str, np.ndarray]:
    """Return what the scores of positions need: each layer's projections of the relative embeddings, and buckets."""
    config = encoder.config
    if not (config.has_c2p or config.has_p2c):
        return {}
    middle, table = config.num_relative_rows // 2, encoder.embeddings.relative_table()
    rows_before = relative_rows(config, config.num_positions)[: config.num_positions].flip(0)
    found = {RELATIVE_BUCKETS: (middle - rows_before).numpy()}
    for number, layer in enumerate(encoder.layers):
        assert isinstance(layer, DisentangledLayer)
        for part, projected in zip(("keys", "queries"), layer.project(table), strict=True):
            if projected is not None:
                name = relative_name(f"bert.layers.{number}", part)
                found[name] = np.ascontiguousarray(projected.numpy())
    return found


_POSITION_TABLES = (
    *("bert.embeddings.position.weight", rotary_name("cos"), rotary_name("frequencies")),
    RELATIVE_BUCKETS,
)


def _join_slices(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Concatenate initializers stored as column slices, for example `name.0-384` and `name.384-768`."""
    slices: dict[str, dict[int, np.ndarray]] = {}
    for name, array in arrays.items():
        match = re.fullmatch(r"(.*)\.(\d+)-\d+(\.int8|\.scales)?", name)
        whole, start = (match[1] + (match[3] or ""), int(match[2])) if match else (name, 0)
        slices.setdefault(whole, {})[start] = array
    return {
        name: np.concatenate([parts[start] for start in sorted(parts)], axis=-1) if len(parts) > 1 else parts[0]
        for name, parts in slices.items()
    }


def reads_only_cls(task: AnyTask, config: EncoderConfig) -> bool:
    """Return whether the task reads only [CLS] of the last layer."""
    if config.pools_mean and task.name != "embedding":
        return False
    return not task.token_outputs and getattr(task.settings, "pooling", "cls") == "cls"


@dataclass(frozen=True)
class Network:
    """A network with a task head, and its quantisation parameters."""

    config: EncoderConfig
    weights: Weights
    task: AnyTask
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """Range of each layer's input, by the layer's name; needed by static and SmoothQuant int8."""
    pads: ClassVar[bool] = True
    """Padding changes no output of an unpadded position."""
    smoothing_factors: Mapping[str, np.ndarray] = field(default_factory=dict)
    """SmoothQuant int8: factor of each input channel of a layer, [in]. The layer's int8 matrix compensates for it."""

    @property
    def layers(self) -> list[str]:
        """Names of the layers whose matrix products can run in int8, in execution order."""
        kinds = ("qkv", "attention_output", "intermediate", "output")
        indices = range(self.config.num_layer_weights)
        layers = [PROJECTION] * (self.config.width_of_embeddings != self.config.hidden_size)
        layers += [f"bert.layers.{index}.{kind}" for index in indices for kind in kinds]
        return layers + ["mlm.dense", DECODER] * self._has_decoder

    @property
    def quantizable_layers(self) -> list[str]:
        """Names of all layers that can be int8, with the word embeddings unless the decoder shares their table."""
        return [WORD_EMBEDDINGS] * (not self._has_decoder) + self.layers

    @property
    def _has_decoder(self) -> bool:
        return self.task.network_task == MaskedLM.name
