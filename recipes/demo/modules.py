"""Find Python files of the standard library and of installed packages, and read their docstrings.

    from recipes.demo.modules import find_sources, installed_libraries, read_module
    read_module(find_sources(installed_libraries())[0]).docstrings

Files are parsed, never imported, so that none of their code runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from recipes.demo.docstrings import Docstring, parse_docstring

PYTHON = "python"
"""Name of the standard library among the libraries."""
PACKAGES = (
    *("numpy", "scipy", "sklearn", "matplotlib", "networkx", "sympy", "pandas", "torch", "transformers", "optimum"),
    *("onnx", "onnxscript", "onnxruntime", "huggingface_hub", "tokenizers", "safetensors", "datasets", "pyarrow"),
    *("grpc", "prometheus_client", "pydantic", "pydantic_settings", "hypothesis", "rich", "typer", "tyro", "tqdm"),
    *("fsspec", "joblib", "mpmath", "PIL", "pyparsing", "jinja2", "requests", "urllib3"),
)
SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "testing", "idle_test", "_vendor", "vendored", "externals")
)
SPLITS = ("train", "dev")
DEV_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Source:
    """File with the names of its module and its library."""

    library: str
    module: str
    path: Path


@dataclass(frozen=True, slots=True)
class Module:
    """Docstrings of one file that contain at least one sentence."""

    source: Source
    docstrings: list[Docstring]


def installed_libraries() -> dict[str, Path]:
    """Return the folders of the standard library and of the installed `PACKAGES`, by library."""
    folders = {PYTHON: Path(sysconfig.get_paths()["stdlib"])}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders[package] = Path(next(iter(spec.submodule_search_locations)))
    return folders


def find_sources(folders: Mapping[str, Path]) -> list[Source]:
    """Return the Python files of each library, except tests and vendored packages.

    Args:
        folders: folder of each library, as `installed_libraries` returns it.
    """
    sources = []
    for library, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if not SKIPPED_FOLDERS.intersection(parts):
                prefix = () if library == PYTHON else (library,)
                names = [part for part in (*prefix, *parts) if part != "__init__"]
                sources.append(Source(library, ".".join(names), path))
    return sources


def read_module(source: Source) -> Module | None:
    """Read and parse one file; return None if it cannot be read or is not valid Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escape sequences
            tree = ast.parse(source.path.read_bytes())
        docstrings = [parse_docstring(*found) for found in _named_docstrings(tree, public_name(source.module))]
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return Module(source, [docstring for docstring in docstrings if docstring.sentences])


def public_name(module: str) -> str:
    """Return the package that users import: `numpy` for `numpy._core.fromnumeric`, at most two levels."""
    parts = module.split(".")
    private = next((index for index, part in enumerate(parts) if part.startswith("_")), len(parts))
    return ".".join(parts[: max(1, min(private, 2))])


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _named_docstrings(node: ast.AST, name: str) -> Iterator[tuple[str, str]]:
    """Yield name and docstring of a node and of the classes and functions in it."""
    text = ast.get_docstring(node) if isinstance(node, (ast.Module, *_DEFINITIONS)) else None
    if text:
        yield name, text.encode("utf-8", "ignore").decode()  # without lone surrogates
    for child in (*getattr(node, "body", ()), *getattr(node, "orelse", ())):
        if isinstance(child, _DEFINITIONS):
            yield from _named_docstrings(child, name if child.name == "__init__" else f"{name}.{child.name}")
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _named_docstrings(child, name)


def rank(*key: object) -> float:
    """Return a number in [0, 1) from a key; unlike `hash`, it is the same on every machine."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_of(module: str, seed: int) -> str:
    """Return the split of a module."""
    return "dev" if rank("split", seed, module) < DEV_FRACTION else "train"


def normalize(text: str) -> str:
    """Reduce a text to lower-case letters and single spaces, to compare texts."""
    return _NOT_LETTERS.sub(" ", text.lower()).strip()


_NOT_LETTERS = re.compile(r"[^a-z]+")
