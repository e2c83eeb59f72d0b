"""Check the shards of a corpus for damage.

python -m training.verify_corpus build/corpus
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from training.command_line.command import command, parse
from training.text.corpus import Corpus


@dataclass(frozen=True, kw_only=True)
class VerifyRecipe:
    """Compare the shards of a corpus with their digests in corpus.json."""

    corpus: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CORPUS")]
    """Directory written by training.corpus."""


@command
def main() -> None:
    """Command line."""
    recipe = parse(VerifyRecipe, "training.verify_corpus", __doc__)
    corpus = Corpus(recipe.corpus)
    corpus.verify()
    print(f"{len(corpus.info['shards'])} shards are intact: `{recipe.corpus}`")


if __name__ == "__main__":
    main()
