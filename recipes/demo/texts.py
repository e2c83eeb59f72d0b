"""Labelled texts for classification: excerpts of docstrings, labelled with their library."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from recipes.demo.modules import SPLITS, Module, normalize, rank, split_of

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
    """Remove the names of libraries and their usual abbreviations from a text (`np.mean` -> `mean`)."""
    names = [alias for library in libraries for alias in (library, *ALIASES.get(library, ()))]
    patterns = [rf"\w*{re.escape(name)}\w*" if len(name) > 4 else re.escape(name) for name in names]
    text = re.sub(rf"(?<!\w)(?:{'|'.join(patterns)})(?!\w)(?:['’]s\b|\.(?=\w))?", " ", text, flags=re.IGNORECASE)
    return re.sub(r" (?=[.,;:!?)])|(?<=\() ", "", " ".join(text.split()))


def excerpt(sentences: Sequence[str]) -> str | None:
    """Return the first sentences, 15 to 60 words; None if there are fewer words."""
    text = first_words(sentences, TEXT_WORDS[1])
    return text if len(text.split()) >= TEXT_WORDS[0] else None


def first_words(sentences: Sequence[str], max_words: int) -> str:
    """Return the first sentences with at most `max_words` in total."""
    words: list[str] = []
    for sentence in sentences:
        if len(words) + len(sentence.split()) > max_words:
            break
        words += sentence.split()
    return " ".join(words)


def labelled_texts(modules: Sequence[Module], seed: int) -> dict[str, list[dict[str, str]]]:
    """Return texts labelled with their library, for the libraries with most texts, balanced where possible.

    No dev text starts with the same eight words as a train text.
    """
    texts = [
        (module.source, text)
        for module in modules
        for docstring in module.docstrings
        if (text := excerpt(docstring.sentences))
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
