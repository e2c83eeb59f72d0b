"""Read Python files: sentences of docstrings, documented functions, and the split of each module."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from demo.docstrings import Docstring, Parameter, Source, parse_parameters, read_docstrings, sentences

SPLITS = ("train", "dev")
DEV_FRACTION = 0.1


@dataclass(frozen=True, slots=True)
class Function:
    """Documented function or class with typed parameters."""

    name: str
    summary: str
    parameters: list[Parameter]


@dataclass(frozen=True, slots=True)
class Module:
    """Sentences of each docstring of a file, and its functions with a "Parameters" section."""

    source: Source
    docstrings: list[list[str]]
    functions: list[Function]


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


def read_module(source: Source) -> Module | None:
    """Read and clean one file; return None if it cannot be read or parsed."""
    try:
        docstrings = read_docstrings(source)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    functions = [function for docstring in docstrings if (function := _function(docstring))]
    return Module(source, [found for docstring in docstrings if (found := sentences(docstring.text))], functions)


def _function(docstring: Docstring) -> Function | None:
    parameters = parse_parameters(docstring.text)
    name = docstring.name.removesuffix(".__init__")
    if len(parameters) < 2 or "._" in name:
        return None
    summary = sentences(f"\n{docstring.text}".split("\nParameters\n")[0])
    return Function(name, ended(summary[0]), parameters) if summary else None


def ended(sentence: str) -> str:
    """Add a full stop to a sentence without punctuation at its end."""
    return sentence if sentence.endswith((".", "!", "?", ":")) else f"{sentence}."
