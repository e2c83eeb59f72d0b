"""Weights in PyTorch's own format, `pytorch_model.bin`: a pickle and arrays, in an archive or one after the other.

PyTorch's restricted unpickler runs no code, but a file of a few kilobytes can still fill the memory: by compressed or
overlapping entries of the archive, or by objects that are as large as a number in the file states, or copies of others.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import torch

MAX_PICKLE_BYTES = 2**23
"""Maximum size of a pickle, without the arrays. It has about 150 bytes for each tensor."""
_NUM_PICKLES = 5
"""Pickles at the beginning of a file of PyTorch before 1.6: magic number, version, system, tensors, order of arrays."""


def load_pickled(path: Path) -> Any:
    """Return the object of a file without taking much more memory than the file has bytes, apart from repeated numbers.

    Raises:
        ValueError: if the archive would unpack to more.
        pickle.UnpicklingError: if there are more than plain tensors.
    """
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":  # as PyTorch decides
            file.seek(0)
            _read_dry(file.read(MAX_PICKLE_BYTES), _NUM_PICKLES)
        else:
            _check_archive(file, path.stat().st_size)
    return torch.load(path, map_location="cpu", weights_only=True)


def _check_archive(file: BinaryIO, num_bytes: int) -> None:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("its archive is compressed, which PyTorch's never are")
        if sum(entry.file_size for entry in entries) > num_bytes:
            raise ValueError("its archive would unpack to more bytes than the file has")
        for entry in entries:
            if entry.filename.lower().endswith("data.pkl"):
                if entry.file_size > MAX_PICKLE_BYTES:
                    raise ValueError(f"its `data.pkl` has {entry.file_size:,} bytes, too many for names of tensors")
                _read_dry(archive.read(entry))


def _read_dry(data: bytes, num_pickles: int = 1) -> None:
    stream = io.BytesIO(data)
    try:
        for _ in range(num_pickles):
            _DryUnpickler(stream, encoding="utf-8").load()
    except (TypeError, AttributeError) as error:  # of a call that is refused
        raise pickle.UnpicklingError(str(error)) from error


class _DryUnpickler(pickle.Unpickler):
    """Unpickler that creates no tensors, and refuses calls that a dictionary of tensors does not need.

    PyTorch also allows `bytearray(10**12)`, and copies of copies of lists.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _StateDict
        if (module, name[:9]) == ("torch._utils", "_rebuild_") or name == "_get_layout":
            return lambda *arguments: None
        if module.partition(".")[0] == "torch":
            return f"{module}.{name}"  # types of tensors and arrays, which are not called
        raise pickle.UnpicklingError(f"`{module}.{name}` is not needed for tensors")

    def persistent_load(self, pid: Any) -> Any:
        return None


class _StateDict(dict[Any, Any]):
    """Dictionary that copies no other object: neither items nor attributes."""

    def __init__(self) -> None:
        super().__init__()

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state.keys() - {"_metadata"}:
            raise pickle.UnpicklingError("a dictionary with attributes")
