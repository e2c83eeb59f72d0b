"""Python files as modules: the sentences of their docstrings, their documented functions, and their split."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from demo.docstrings import Docstring, Parameter, Source, parse_parameters, read_docstrings, sentences

SPLITS = ("train", "dev")
DEV_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Function:
    """A documented function or class with its typed parameters."""

    name: str
    summary: str
    parameters: list[Parameter]


@dataclass(frozen=True, slots=True)
class Module:
    """What one file gives: the sentences of each docstring, and the functions with a "Parameters" section."""

    source: Source
    docstrings: list[list[str]]
    functions: list[Function]


def rank(*key: object) -> float:
    """A number in [0, 1) that depends on nothing but the key: the same on every machine, unlike `hash`."""
    digest = hashlib.sha256("\0".join(map(str, key)).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def split_of(module: str, seed: int) -> str:
    """The split of everything that a module holds."""
    return "dev" if rank("split", seed, module) < DEV_SHARE else "train"


def normalize(text: str) -> str:
    """Lower-case letters and single spaces only: what makes two texts the same."""
    return _NOT_LETTERS.sub(" ", text.lower()).strip()


_NOT_LETTERS = re.compile(r"[^a-z]+")


def read_module(source: Source) -> Module | None:
    """Read and clean one file; None when it cannot be read or parsed."""
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
    """A sentence with a full stop where it has no end."""
    return sentence if sentence.endswith((".", "!", "?", ":")) else f"{sentence}."
