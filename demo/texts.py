"""Labelled texts for classification: which library is a docstring from?"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from demo.modules import SPLITS, Module, ended, normalize, rank, split_of

NUM_LABELS = 8
TEXTS_PER_LABEL = {"train": 1000, "dev": 125}
TEXT_WORDS = (15, 60)
MAX_SAME_OPENING = 2
ALIASES = {
    "torch": ("pytorch",),
    "sklearn": ("scikit-learn", "scikit", "scikits.learn"),
    "transformers": ("hugging face", "huggingface", "🤗", "tensorflow", "tf"),
    "matplotlib": ("pyplot", "plt", "mpl"),
    "numpy": ("np",),
    "networkx": ("nx",),
}


def mask_names(text: str, libraries: Iterable[str]) -> str:
    """Take the names of libraries and their usual short forms out of a text (`np.mean` -> `mean`)."""
    names = [alias for library in libraries for alias in (library, *ALIASES.get(library, ()))]
    patterns = [rf"\w*{re.escape(name)}\w*" if len(name) > 4 else re.escape(name) for name in names]
    text = re.sub(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)(?:['’]s\b|\.(?=\w))?", " ", text, flags=re.IGNORECASE)
    return re.sub(r" (?=[.,;:!?)])|(?<=\() ", "", " ".join(text.split()))


def excerpt(docstring: Sequence[str]) -> str | None:
    """The first sentences of a docstring, 15 to 60 words; None when it has fewer."""
    text = first_words(docstring, TEXT_WORDS[1])
    return text if len(text.split()) >= TEXT_WORDS[0] else None


def first_words(texts: Sequence[str], max_words: int) -> str:
    """As many of the first sentences as have `max_words` together; a full stop is set where one lacks."""
    words: list[str] = []
    for text in texts:
        if len(words) + len(text.split()) > max_words:
            break
        words += ended(text).split()
    return " ".join(words)


def labelled_texts(modules: Sequence[Module], seed: int) -> dict[str, list[dict[str, str]]]:
    """Texts with the library they are from, for the libraries that have most of them, equally many each where possible.

    No opening (first eight words) of a dev text opens a train text.
    """
    texts = [
        (module.source, text) for module in modules for docstring in module.docstrings if (text := excerpt(docstring))
    ]
    counts = Counter(source.library for source, _ in texts)
    labels = sorted(counts, key=lambda label: (-counts[label], label))[:NUM_LABELS]
    texts.sort(key=lambda item: rank("text", seed, item[0].module, item[1]))
    openings: Counter[str] = Counter()
    found: dict[str, list[dict[str, str]]] = {}
    for split in SPLITS:
        allowed = MAX_SAME_OPENING if split == "train" else 1
        taken: Counter[str] = Counter()
        found[split] = []
        for source, text in texts:
            masked = mask_names(text, labels) if source.library in labels else ""
            opening = " ".join(normalize(masked).split()[:8])
            fits = len(masked.split()) >= TEXT_WORDS[0] and openings[opening] < allowed
            if split_of(source.module, seed) == split and fits and taken[source.library] < TEXTS_PER_LABEL[split]:
                openings[opening] += 1
                taken[source.library] += 1
                found[split].append({"text": masked, "label": source.library})
    return found
