"""Weights of a checkpoint: files in Hugging Face's formats."""

from __future__ import annotations

import errno
import hashlib
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks.bundle.files import sha256
from tasks.text.json_files import open_regular, read_json
from training.checkpoint.pickled_weights import load_pickled

WEIGHTS_FILE = "model.safetensors"
WEIGHTS_FILES = (
    WEIGHTS_FILE,
    f"{WEIGHTS_FILE}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Files that hold the weights or, as an index, name the files that do. The first one found is read."""
_WRAPPERS = ("module.", "_orig_mod.", "model.")
"""Starts of the names of a network that was saved within another module: DataParallel, `torch.compile`, Lightning."""
MAX_NAMES = 4
"""Maximum number of names for the same numbers, on average: tied weights have two or three."""


def has_weights(directory: Path) -> bool:
    """Return whether a checkpoint directory has weights."""
    return any((directory / name).is_file() for name in WEIGHTS_FILES)


def checkpoint_digest(*directories: str | Path) -> str:
    """Return the SHA-256 of the weights in one or several directories, hexadecimal.

    For one file, this is its digest; for several, the digest of the list of their digests.

    Raises:
        ValueError: if there are none.
    """
    paths = [_weights_path(Path(directory)) for directory in directories]
    digests = [sha256(file) for path in paths for file in (path, *(_parts(path) if path.suffix == ".json" else ()))]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def network_digest(directory: str | Path) -> str:
    """Return the SHA-256 of the weights and of `config.json`, hexadecimal: of all that the network's outputs depend on.

    Raises:
        ValueError: if there are no weights.
    """
    parts = (checkpoint_digest(directory), sha256(Path(directory) / "config.json"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _weights_path(directory: Path) -> Path:
    for name in WEIGHTS_FILES:
        if (directory / name).is_file():
            return directory / name
    raise ValueError(f"no weights in `{directory}`: expected `{WEIGHTS_FILE}` or `pytorch_model.bin`")


def read_weights(directory: str | Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint under Hugging Face's names, as float32; names of wrappers are removed.

    Raises:
        ValueError: if there are none, or the file is broken or holds more than plain tensors.
    """
    path = _weights_path(Path(directory))
    if path.suffix == ".json":
        files, weights = _read_index(path), dict[str, Tensor]()
        for part in _parts(path):
            weights |= {key: value for key, value in _read_file(part).items() if files.get(key) == part.name}
        if missing := sorted(files.keys() - weights.keys()):
            file = files[missing[0]]
            raise ValueError(f"`{path}` names `{missing[0]}`, which `{file}` lacks; copy the checkpoint again")
    else:
        weights = dict(_read_file(path))
    floats = {name: value for name, value in weights.items() if value.is_floating_point()}
    if quantized := next((name for name, value in weights.items() if _is_quantized(name, value)), None):
        raise ValueError(
            f"cannot read weights `{path}`: `{quantized}` is quantized; use the checkpoint with 16 bits or more"
        )
    return {name: value.float() for name, value in _unwrapped(floats).items()}


def _unwrapped(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Remove the starts that wrappers give all names; a family whose own start is `model.` is read without it, too."""
    for start in _WRAPPERS:
        if weights and all(name.startswith(start) for name in weights):
            return _unwrapped({name.removeprefix(start): value for name, value in weights.items()})
    return weights


def _read_index(index: Path) -> dict[str, str]:
    """Return the file name of each tensor."""
    files = read_json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"broken `{index}`: expected `weight_map`, the file of each tensor by its name")
    return files


def _parts(index: Path) -> list[Path]:
    """Return the files that an index names, in the order of their names."""
    names = sorted(set(_read_index(index).values()))
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise ValueError(f"`{index}` names `{name}`, which is no file beside it; copy all files of the checkpoint")
    return [index.parent / name for name in names]


def _read_file(path: Path) -> Mapping[str, Tensor]:
    open_regular(path).close()  # raises for a pointer of git-lfs
    try:
        weights = load_file(path) if path.suffix == ".safetensors" else load_pickled(path)
    except Exception as error:  # safetensors and pickle raise errors of many kinds
        reason = str(error).splitlines()[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = f"it holds more than plain tensors, which could run code; save them as {WEIGHTS_FILE}"
        raise ValueError(f"cannot read weights `{path}`: {reason}") from error
    if not isinstance(weights, Mapping) or not all(map(_is_weight, weights, weights.values())):
        raise ValueError(
            f"cannot read weights `{path}`: expected tensors by name (a state dictionary), none of them sparse or meta"
        )
    num_bytes, file_bytes = sum(value.nbytes for value in weights.values()), path.stat().st_size
    if num_bytes > MAX_NAMES * file_bytes:
        raise ValueError(f"cannot read weights `{path}`: {num_bytes:,} bytes of tensors in {file_bytes:,} bytes")
    return weights


def _is_quantized(name: str, value: Tensor) -> bool:
    """Return whether a tensor is a quantized weight: floats of 8 bits, or integers where a weight should be."""
    if value.is_floating_point():
        return value.dtype.itemsize < 2
    return name.endswith((".weight", ".qweight", ".qzeros"))


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
