"""Weights of a checkpoint: files in Hugging Face's formats, and their names there and here."""

from __future__ import annotations

import errno
import pickle
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.files import sha256
from tasks.json_files import read_json

WEIGHTS_FILE = "model.safetensors"
_WEIGHTS_FILES = (
    WEIGHTS_FILE,
    f"{WEIGHTS_FILE}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files that hold the weights or, as an index, name the files that do. The first one found is read."""


def has_weights(directory: Path) -> bool:
    """Return whether a checkpoint directory has weights."""
    return any((directory / name).is_file() for name in _WEIGHTS_FILES)


def checkpoint_digest(directory: str | Path) -> str:
    """Return the SHA-256 of the weights, hexadecimal.

    Raises:
        ValueError: if there are none.
    """
    return sha256(_weights_path(Path(directory)))


def _weights_path(directory: Path) -> Path:
    for name in _WEIGHTS_FILES:
        if (directory / name).is_file():
            return directory / name
    raise ValueError(f"no weights in `{directory}`: expected `{WEIGHTS_FILE}` or `pytorch_model.bin`")


def read_weights(directory: str | Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint under Hugging Face's names, as float32.

    Raises:
        ValueError: if there are none, or the file is broken or holds more than plain tensors.
    """
    path = _weights_path(Path(directory))
    weights = _read_sharded(path) if path.suffix == ".json" else _read_file(path)
    floats = {name: value for name, value in weights.items() if value.is_floating_point()}
    if narrow := next((name for name, value in floats.items() if value.dtype.itemsize < 2), None):
        raise ValueError(
            f"cannot read weights `{path}`: `{narrow}` is quantized; take the checkpoint in 16 bits or more"
        )
    return {name: value.float() for name, value in floats.items()}


def _read_sharded(index: Path) -> dict[str, Tensor]:
    """Read weights in several files.

    Args:
        index: JSON file with the file of each tensor.
    """
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"broken `{index}`: expected `weight_map`, the file of each tensor by its name")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(files.values())):
        part = index.parent / name
        if Path(name).name != name or not part.is_file():
            raise ValueError(f"`{index}` names `{name}`, which is no file beside it; copy all files of the checkpoint")
        weights |= {key: value for key, value in _read_file(part).items() if files.get(key) == name}
    if missing := sorted(files.keys() - weights.keys()):
        raise ValueError(
            f"`{index}` names `{missing[0]}`, which `{files[missing[0]]}` lacks; copy the checkpoint again"
        )
    return weights


def _read_file(path: Path) -> Mapping[str, Tensor]:
    try:
        weights = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # safetensors and pickle raise errors of many kinds
        reason = str(error).splitlines()[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = f"it holds more than plain tensors, which could run code; save them as {WEIGHTS_FILE}"
        raise ValueError(f"cannot read weights `{path}`: {reason}") from error
    if not isinstance(weights, Mapping) or not all(map(_is_weight, weights, weights.values())):
        raise ValueError(
            f"cannot read weights `{path}`: expected tensors by name (a state dictionary), none of them sparse or meta"
        )
    return weights


def _is_weight(name: object, value: object) -> bool:
    return isinstance(name, str) and isinstance(value, Tensor) and not value.is_meta and value.layout == torch.strided


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write weights as safetensors.

    Raises:
        OSError: names the file.
    """
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as error:  # it has the system's error as text only
        raise OSError(errno.EIO, str(error).rpartition("I/O error: ")[2], str(path)) from error


_LAYER = "bert.encoder.layer."
_NAMES = {
    "bert.embeddings.word": "bert.embeddings.word_embeddings",
    "bert.embeddings.position": "bert.embeddings.position_embeddings",
    "bert.embeddings.token_type": "bert.embeddings.token_type_embeddings",
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "bert.pooler": "bert.pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
    "nsp": "cls.seq_relationship",
}
"""Our names -> Hugging Face's, outside of the layers. The other heads have the same names."""
_LAYER_NAMES = {
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}


def to_hugging_face(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under Hugging Face's names, with query, key and value split."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        if match := re.fullmatch(r"bert\.layers\.(\d+)\.(\w+)\.(\w+)", name):
            number, module, kind = match.groups()
            if module == "qkv":
                for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    renamed[f"{_LAYER}{number}.attention.self.{part}.{kind}"] = piece.contiguous()
            else:
                renamed[f"{_LAYER}{number}.{_LAYER_NAMES[module]}.{kind}"] = value.contiguous()
        else:
            prefix = next((item for item in _NAMES if name == item or name.startswith(item + ".")), "")
            renamed[_NAMES.get(prefix, prefix) + name[len(prefix) :]] = value.contiguous()
    return renamed


def from_hugging_face(weights: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Return the weights under our names, with query, key and value joined.

    Args:
        weights: named as by Hugging Face, with or without the prefix `bert.`.
        num_layers: layers of the network.
    """
    named = {_modern_name(name): value for name, value in weights.items()}
    back = {theirs: ours for ours, theirs in _NAMES.items()}
    renamed = {}
    for name, value in named.items():
        prefix = next((item for item in back if name == item or name.startswith(item + ".")), "")
        renamed[back.get(prefix, prefix) + name[len(prefix) :]] = value
    for number in range(num_layers):
        source, target = f"{_LAYER}{number}.", f"bert.layers.{number}."
        for kind in ("weight", "bias"):
            parts = [named.get(f"{source}attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                renamed[f"{target}qkv.{kind}"] = torch.cat([part for part in parts if part is not None])
            for ours, theirs in _LAYER_NAMES.items():
                if f"{source}{theirs}.{kind}" in named:
                    renamed[f"{target}{ours}.{kind}"] = named[f"{source}{theirs}.{kind}"]
    return renamed


def _modern_name(name: str) -> str:
    """Replace TensorFlow's names of LayerNorm parameters; add the prefix that bare encoders lack."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
