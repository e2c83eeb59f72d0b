"""Model directory: written by export, read by the server.

    models/<name>/<version>/
        model.onnx        the graph
        model.onnx.data   its weights, if they are too large for one file
        model.<engine>.onnx, model.<engine>.onnx.data    the same model for another engine, if that is faster
        tokenizer.json    the tokenizer
        manifest.json     everything the server must know, and where it came from

Writing is atomic (a version directory is whole or absent); reading checks every digest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from tasks.base import AnyTask
from tasks.bundle.files import sha256
from tasks.bundle.graph_file import GraphFile, read_graph_file
from tasks.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, Execution, Manifest
from tasks.bundle.providers import Engine
from tasks.registry import create_task
from tasks.text.json_files import read_json_value, read_regular
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_FILE

MODEL_FILE = "model.onnx"
DATA_FILE = "model.onnx.data"
_GRAPHS = {engine: MODEL_FILE if engine == "onnxruntime" else f"model.{engine}.onnx" for engine in get_args(Engine)}
GRAPH_FILES = tuple(name for graph in _GRAPHS.values() for name in (graph, f"{graph}.data"))
"""Files that an export may write for its graphs."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VERSION = re.compile(r"[1-9][0-9]*")


@dataclass(frozen=True)
class ModelDirectory:
    """A model directory with checked digests."""

    path: Path
    manifest: Manifest
    weight_files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Graph -> files next to it that hold its weights, by name."""

    @property
    def model_path(self) -> Path:
        """Path of the graph that the manifest's `execution` runs."""
        return self.graph_path(self.manifest.execution)

    def graph_path(self, execution: Execution) -> Path:
        """Return the path of the graph that these settings run."""
        return self.path / graph_file(self.manifest, execution)

    def load_task(self) -> AnyTask:
        """Return the task with its tokenizer and settings, as evaluated."""
        return create_task(self.manifest.task, Tokenizer.load(self.path), self.manifest.settings)


def read_model_directory(path: str | Path) -> ModelDirectory:
    """Read a model directory and check its digests.

    Raises:
        ValueError: naming the file, and the key or digest that is wrong.
    """
    path = Path(path)
    manifest_path = path / MANIFEST_FILE
    try:
        manifest = Manifest.from_json(read_regular(manifest_path, MAX_MANIFEST_BYTES).decode())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise ValueError(f"not a model directory: `{path}` has no {MANIFEST_FILE}") from None
    except ValueError as error:
        raise ValueError(f"broken manifest `{manifest_path}`: {error}") from error
    for required in (MODEL_FILE, TOKENIZER_FILE):
        if required not in manifest.files:
            raise ValueError(f"broken manifest `{manifest_path}`: `files` lacks `{required}`")
    for name, expected in manifest.files.items():
        if Path(name).name != name:
            raise ValueError(f"broken manifest `{manifest_path}`: `{name}` is not a plain file name")
        try:
            actual = sha256(path / name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ValueError(f"missing file: `{path / name}`; export the model again") from None
        if actual != expected:
            raise ValueError(
                f"wrong digest of `{path / name}`: `{actual[:12]}...` where the manifest says `{expected[:12]}...`; "
                "the file was changed or damaged, export the model again"
            )
    weight_files = {}
    for name in _GRAPHS.values():
        if name in manifest.files:
            graph = read_graph_file(path / name)
            _check_graph(graph, manifest, path / name)
            weight_files[name] = tuple(sorted(graph.weight_files))
    return ModelDirectory(path=path, manifest=manifest, weight_files=weight_files)


def file_for(execution: Execution) -> str:
    """Return the name of the graph that an export writes for these settings."""
    return _GRAPHS[execution.engine]


def graph_file(manifest: Manifest, execution: Execution) -> str:
    """Return the name of the graph that these settings run: that of the engine, if there is one."""
    name = file_for(execution)
    return name if name in manifest.files else MODEL_FILE


def _check_graph(graph: GraphFile, manifest: Manifest, path: Path) -> None:
    """Raise ValueError for weight files without a digest, and for a max_seq_length above the positions of the graph."""
    if unlisted := sorted(graph.weight_files - manifest.files.keys()):
        raise ValueError(
            f"`{path}` does not match its manifest: it reads weights from `{unlisted[0]}`, which `files` lacks; export "
            "the model again"
        )
    length, limit = manifest.settings.max_seq_length, graph.num_positions
    if limit is not None and length > limit:
        raise ValueError(
            f"`{path}` does not match its manifest: it has {limit} positions, fewer than max_seq_length `{length}`; "
            "export the model again"
        )


def holds_manifest(path: Path) -> bool:
    """Return whether a directory has a manifest, of any version, and not another file of that name."""
    try:
        values = read_json_value(path / MANIFEST_FILE, MAX_MANIFEST_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(values, dict) and {"format", "task", "files"} <= values.keys()


def model_folders(models: str | Path) -> list[Path]:
    """Return the folders with a valid model name in a directory of models, sorted.

    Raises:
        ValueError: when the directory is missing.
        OSError: when it cannot be read.
    """
    models = Path(models)
    if not models.is_dir():
        what = "it is a file; give the folder of models" if models.is_file() else "export a model into it first"
        raise ValueError(f"no directory of models: `{models}`; {what}")
    return sorted(item for item in models.iterdir() if _NAME.fullmatch(item.name))


def version_paths(folder: Path) -> list[Path]:
    """Return the version directories of a model, lowest version first, as `list_model`."""
    return list_model(folder)[0]


def list_model(folder: Path) -> tuple[list[Path], dict[Path, str]]:
    """Return the version directories of a model, lowest version first, and models in other places of its folder.

    Links are not followed: they may be broken, or wait for other storage. Hidden folders are still written.

    Args:
        folder: folder of the model; it may be missing.

    Returns:
        The versions; and the other models: path -> what is wrong, in one line.

    Raises:
        OSError: when the folder cannot be read.
    """
    try:
        with os.scandir(folder) as found:
            items = {item.name: item for item in found}
    except (FileNotFoundError, NotADirectoryError):
        return [], {}
    versions = [
        Path(item) for item in items.values() if _VERSION.fullmatch(item.name) and (item.is_symlink() or item.is_dir())
    ]
    misplaced = {}
    if items.keys() & {MODEL_FILE, MANIFEST_FILE} and _holds_model(folder):
        misplaced[folder] = f"move it to a version, such as `{folder}/1`"
    for path in _subfolders(items.values()):
        if _VERSION.fullmatch(path.name):
            continue
        if _holds_model(path):
            misplaced[path] = _path_problem(path)
        else:
            inside = [item for item in _subfolders_of(path) if _VERSION.fullmatch(item.name) and _holds_model(item)]
            misplaced |= {item: f"move it to `{folder.parent / path.name / item.name}`" for item in inside}
    return sorted(versions, key=lambda item: int(item.name)), _not_served(misplaced)


def misplaced_beside(models: Path) -> dict[Path, str]:
    """Return the models that are in no folder of `model_folders`, as `list_model`."""
    found = {models: f"move it to `{models}/<name>/<version>`"} if _holds_model(models) else {}
    for folder in _subfolders_of(models):
        if not _NAME.fullmatch(folder.name):
            found |= {path: _path_problem(path) for path in _subfolders_of(folder) if _holds_model(path)}
    return _not_served(found)


def _not_served(found: Mapping[Path, str]) -> dict[Path, str]:
    return {path: f"`{path}` holds a model that is not served: {problem}" for path, problem in found.items()}


def _holds_model(path: Path) -> bool:
    with suppress(OSError):
        return (path / MODEL_FILE).is_file() or holds_manifest(path)
    return False


def _subfolders(items: Iterable[os.DirEntry[str]]) -> list[Path]:
    found = [item for item in items if not item.name.startswith(".") and item.is_dir(follow_symlinks=False)]
    return sorted(map(Path, found))


def _subfolders_of(folder: Path) -> list[Path]:
    """Return the folders in a folder that are not hidden; none if it cannot be read."""
    with suppress(OSError), os.scandir(folder) as items:
        return _subfolders(items)
    return []


def _path_problem(path: Path) -> str:
    """Return why a path is not `.../<name>/<version>`."""
    try:
        parse_model_path(path)
    except ValueError as error:
        return str(error)
    return ""


def no_models_error(models: str | Path) -> ValueError:
    """Return the error for a directory of models without models; it names a checkpoint, or a model in a wrong place."""
    if (Path(models) / "config.json").is_file():
        return ValueError(f"`{models}` is a checkpoint, not a directory of models; export it first: python -m export")
    misplaced = misplaced_beside(Path(models))
    for folder in model_folders(models):
        misplaced |= list_model(folder)[1]
    if misplaced:
        return ValueError(next(iter(misplaced.values())))
    return ValueError(f"no models in `{models}`; expected `{models}/<name>/<version>/{MANIFEST_FILE}`")


def parse_model_path(path: str | Path) -> tuple[str, str]:
    """Return name and version of `.../<name>/<version>`.

    Raises:
        ValueError: naming the part that is missing or invalid.
    """
    path = Path(path)
    name, version = path.parent.name, path.name
    if not _VERSION.fullmatch(version):
        raise ValueError(
            f"not a model directory `.../<name>/<version>`: `{path}` must end in a version, a whole number such as `1`"
        )
    if not name:
        raise ValueError(f"not a model directory `.../<name>/<version>`: `{path}` has no name before the version")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"invalid model name: `{name}`; use letters, digits, `.`, `_` and `-`, and start with a letter or digit"
        )
    return name, version
