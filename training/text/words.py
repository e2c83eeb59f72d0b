"""Word segmentation of text that is written without spaces, for whole-word masking.

    python -m training.corpus --data zh/ --tokenizer build/tokenizer --out build/corpus --words jieba

BERT's tokenizer makes each Chinese character a token, so its tokens do not show words. A segmenter finds where words
begin between such characters. All other text is unaffected.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tasks.text.languages import HAN, KANA

Split = Callable[[str], list[str]]
"""Splits a sentence into words; joined, they are the text to tokenize."""


@dataclass(frozen=True, slots=True)
class Segmenter:
    """A method to find words."""

    load: Callable[[], Split]
    letters: str
    """Characters between which it finds words, as ranges of a regular expression's class."""
    package: str | None = None
    """Distribution that must be installed, from the dependency group `chinese`."""


def _load_jieba() -> Split:
    """Load jieba with its dictionary, and its model for words outside of the dictionary."""
    with warnings.catch_warnings():  # for invalid escapes and for pkg_resources
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(logging.ERROR)
    tokenizer = jieba.Tokenizer()
    # jieba's `initialize` would read a cache in the temporary folder, where any user of the machine can write.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer.lcut


_SPACES = re.compile(rf"(?<=[{HAN}{KANA}])\s+(?=[{HAN}{KANA}])")

SEGMENTERS = {
    "jieba": Segmenter(_load_jieba, HAN, package="jieba"),
    "spaces": Segmenter(lambda: _SPACES.split, HAN + KANA),
}
"""Segmenters by name, as in `--words`."""


def name_with_version(name: str) -> str:
    """Return the name of a segmenter with its version: the same name finds the same words.

    Raises:
        ChildProcessError: if it is not installed.
    """
    package = SEGMENTERS[name].package
    if package is None:
        return name
    try:
        return f"{name} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        raise ChildProcessError(
            f"--words {name} needs `{package}`: python -m pip install --group chinese -c constraints.txt"
        ) from None


@cache
def load_segmenter(name: str) -> tuple[Split, str]:
    """Load a segmenter, once for each process.

    Args:
        name: name and version from `name_with_version`, possibly of another machine.

    Returns:
        The function that splits sentences, and the characters between which it finds words.

    Raises:
        ChildProcessError: if it is not installed here, or in another version.
    """
    plain = name.split()[0]
    if (here := name_with_version(plain)) != name:
        raise ChildProcessError(f"this machine has {here}, but the command was started with {name}; install the same")
    segmenter = SEGMENTERS[plain]
    return segmenter.load(), segmenter.letters
