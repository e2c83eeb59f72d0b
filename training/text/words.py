"""Words of text that is written without spaces, for whole-word masking.

    python -m training.corpus --data zh/ --tokenizer build/tokenizer --out build/corpus --words jieba

The pieces of BERT's tokenizer do not show them: each Chinese character is a token of its own. A segmenter says where
words begin between such characters; everywhere else words are what they are without it.
"""

from __future__ import annotations

import importlib.metadata
import logging
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tasks.languages import HAN, KANA

Split = Callable[[str], list[str]]
"""A sentence -> its words, which joined are the text to tokenise."""


@dataclass(frozen=True, slots=True)
class Segmenter:
    """A way to find words."""

    load: Callable[[], Split]
    letters: str
    """Between two of these it says where words begin; ranges of a regular expression's class."""
    package: str | None = None
    """The distribution that has it, of the dependency group `chinese`."""


def _load_jieba() -> Split:
    """jieba with its own dictionary, and its model for words that are not in there."""
    with warnings.catch_warnings():  # its patterns have invalid escapes, and it asks for pkg_resources
        warnings.simplefilter("ignore")
        import jieba
    jieba.setLogLevel(logging.ERROR)
    tokenizer = jieba.Tokenizer()
    # Its own `initialize` would go by a file in the temporary folder, which any user of the machine can have put there.
    tokenizer.FREQ, tokenizer.total = tokenizer.gen_pfdict(tokenizer.get_dict_file())
    tokenizer.initialized = True
    return tokenizer.lcut


_SPACES = re.compile(rf"(?<=[{HAN}{KANA}])\s+(?=[{HAN}{KANA}])")

SEGMENTERS = {
    "jieba": Segmenter(_load_jieba, HAN, package="jieba"),
    "spaces": Segmenter(lambda: _SPACES.split, HAN + KANA),
}
"""Segmenters by their name for `--words`."""


def name_with_version(name: str) -> str:
    """Name a segmenter so that two of the same name find the same words.

    Raises:
        ChildProcessError: when it is not installed.
    """
    package = SEGMENTERS[name].package
    if package is None:
        return name
    try:
        return f"{name} {importlib.metadata.version(package)}"
    except importlib.metadata.PackageNotFoundError:
        raise ChildProcessError(
            f"--words {name} needs what is not installed: python -m pip install --group chinese -c constraints.txt"
        ) from None


@cache
def load_segmenter(name: str) -> tuple[Split, str]:
    """Load a segmenter, once a process.

    Args:
        name: as `name_with_version` gave it, maybe on another machine.

    Returns:
        How it splits, and the letters between which it counts.

    Raises:
        ChildProcessError: when it is not installed here, or in another version.
    """
    plain = name.split()[0]
    if (here := name_with_version(plain)) != name:
        raise ChildProcessError(f"this machine has {here}, but the command was started with {name}; install the same")
    segmenter = SEGMENTERS[plain]
    return segmenter.load(), segmenter.letters
