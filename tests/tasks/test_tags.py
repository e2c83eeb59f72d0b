"""Entities of tags in every scheme, and the best valid sequence of tags."""

import re
import warnings
from functools import cache
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seqeval.metrics.sequence_labeling import get_entities
from seqeval.scheme import BILOU, IOB1, IOB2, IOBES, IOE2, Entities

from tasks.metrics import tagging_scores
from tasks.tagging import TaggingExample
from tasks.tags import best_tags, chunks, find_malformed_tag, is_strict, is_strict_at_ends, to_iob2
from training.objectives.baselines import majority_tag

SCHEMES = {
    "IOB2": ("B-LOC", "B-PER", "I-LOC", "I-PER", "O"),
    "IOE2": ("E-LOC", "E-PER", "I-LOC", "I-PER", "O"),
    "IOBES": ("B-X", "E-X", "I-X", "O", "S-X"),
    "BILOU": ("B-X", "I-X", "L-X", "O", "U-X"),
    "BMES": ("B", "E", "M", "O", "S"),
}
REFERENCES = {"IOB1": IOB1, "IOB2": IOB2, "IOE2": IOE2, "IOBES": IOBES, "BILOU": BILOU, "BMES": IOBES, "BMEWO": IOBES}
"""Schemes of seqeval, which uses other letters for the last two. Its IOE1 is incomplete, as its source notes."""
LETTERS = {"IOBES": "BIES", "BILOU": "BILU", "BMES": "BMES", "BMEWO": "BMEW"}


def spell(entities, num_words, scheme):
    """Return the tags of these entities in a scheme."""
    tags = ["O"] * num_words
    ends, starts = {(kind, last) for kind, _, last in entities}, {(kind, first) for kind, first, _ in entities}
    for kind, first, last in entities:
        for index in range(first, last + 1):
            if scheme in LETTERS:
                begin, inside, end, single = LETTERS[scheme]
                inner = begin if index == first else end if index == last else inside
                prefix = single if first == last else inner
            elif scheme in ("IOB1", "IOB2"):
                is_marked = index == first and (scheme == "IOB2" or (kind, first - 1) in ends)
                prefix = "B" if is_marked else "I"
            else:
                is_marked = index == last and (scheme == "IOE2" or (kind, last + 1) in starts)
                prefix = "E" if is_marked else "I"
            tags[index] = f"{prefix}-{kind}" if kind != "_" else prefix
    return tags


def sentences(kinds):
    """Draw entities and the number of words of a sentence."""

    def place(runs):
        entities, index = [], 0
        for kind, length in runs:
            if kind != "O":
                entities.append((kind, index, index + length - 1))
            index += length
        return entities, index

    return st.lists(st.tuples(st.sampled_from(["O", *kinds]), st.integers(1, 4)), min_size=1, max_size=6).map(place)


ALL = ["IOB1", "IOB2", "IOE1", "IOE2", *LETTERS]


@settings(max_examples=100)
@given(scheme=st.sampled_from(ALL), sentence=sentences(["PER", "LOC", "creative-work"]))
def test_every_scheme_gives_its_entities(scheme, sentence):
    """Tags of every scheme give the entities that they encode, as in seqeval."""
    entities, num_words = sentence
    tags = spell(entities, num_words, scheme)

    assert chunks(tags) == entities
    assert to_iob2(tags) == spell(entities, num_words, "IOB2")
    assert find_malformed_tag(tags) is None
    if scheme in REFERENCES:
        letters = str.maketrans("MW", "IS")
        translated = [tag[0].translate(letters) + tag[1:] for tag in tags]
        expected = Entities([translated], REFERENCES[scheme]).entities[0]
        assert [(item.tag, item.start, item.end - 1) for item in expected] == entities


@given(scheme=st.sampled_from(ALL), sentence=sentences(["_"]))
def test_prefixes_without_types_spell_entities(scheme, sentence):
    """Tags without types give entities too, if all labels are known."""
    entities, num_words = sentence
    labels = {"O", *LETTERS.get(scheme, "BI" if "B" in scheme else "IE")}

    assert chunks(spell(entities, num_words, scheme), labels) == entities


@given(
    scheme=st.sampled_from(["IOB2", "IOE2", "IOBES", "BILOU"]),
    numbers=st.lists(st.integers(0, 4), min_size=1, max_size=8),
)
def test_strict_tags_have_the_entities_of_seqeval(scheme, numbers):
    """Strict tags have the same entities in seqeval's strict mode."""
    labels = SCHEMES[scheme]
    logits = np.eye(5)[numbers] + np.random.default_rng(0).random((len(numbers), 5)) / 2

    found = best_tags(logits, labels, strict=scheme != "IOE2", strict_ends=scheme != "IOB2")

    tags = [labels[number] for number in found]
    expected = Entities([tags], REFERENCES[scheme]).entities[0]

    assert chunks(tags) == [(item.tag, item.start, item.end - 1) for item in expected]


@given(tags=st.lists(st.sampled_from(["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in "XY")]), max_size=9))
def test_faulty_tags_are_read_as_seqeval_reads_them(tags):
    """Invalid tags give the entities of seqeval without warnings, also in BILOU and BMES."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = get_entities(tags)

    assert chunks(tags) == expected
    for letters in ("BILU", "BMES", "BMEW"):
        translated = [tag[0].translate(str.maketrans("BIES", letters)) + tag[1:] for tag in tags]
        assert chunks(translated) == expected


TRAIN = [([("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 6)], 7), ([("LOC", 0, 0)], 3), ([("PER", 1, 2)], 3)]
WORDS = ["Ann Lee Bob saw New York City", "Lee is Lee", "a New Lee"]


@pytest.mark.parametrize("scheme", ALL)
def test_scores_and_baseline_are_the_same_in_every_scheme(scheme):
    """Scores and baseline depend on the entities only, not on the scheme."""
    examples = [
        TaggingExample(tuple(words.split()), tuple(spell(entities, size, scheme)))
        for words, (entities, size) in zip(WORDS, TRAIN, strict=True)
    ]
    reference = [
        TaggingExample(item.words, tuple(spell(entities, size, "IOB2")))
        for item, (entities, size) in zip(examples, TRAIN, strict=True)
    ]
    predictions = [spell(entities[:-1], size, scheme) for entities, size in TRAIN]

    scores = tagging_scores([item.tags for item in examples], predictions)
    baseline = majority_tag(examples, examples)

    assert (scores["f1"], scores["precision"], scores["recall"]) == (4 / 7, 1.0, 2 / 5)
    assert baseline["f1"] == majority_tag(reference, reference)["f1"] == 0.5


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        ("B-PER I-PER L-PER O U-ORG", [("PER", 0, 2), ("ORG", 4, 4)]),
        ("B-NAME M-NAME E-NAME", [("NAME", 0, 2)]),
        ("B M E S W- O", [("B", 0, 0), ("M", 1, 1), ("E", 2, 2), ("S", 3, 3), ("_", 4, 4)]),
        ("B M E S O S", [("_", 0, 2), ("_", 3, 3), ("_", 5, 5)]),
        ("B I O", [("_", 0, 1)]),
        ("PER PER O LOC", [("PER", 0, 1), ("LOC", 3, 3)]),
        ("S V V N", [("S", 0, 0), ("V", 1, 2), ("N", 3, 3)]),
        ("GPE-LOC O", [("GPE-LOC", 0, 0)]),
    ],
)
def test_tags_by_hand(tags, entities):
    """Letters of one scheme are prefixes, and other tags are types."""
    assert chunks(tags.split()) == entities


@pytest.mark.parametrize(
    ("labels", "odd", "message"),
    [
        ("B-PER I-PER X-PER O", "X-PER", "unknown prefix `X-` .known are `B-`, `I-`, "),
        ("X-PER O", "X-PER", "unknown prefix `X-`"),
        ("B-PER I-PER 0", "0", "no prefix, though `B-PER` has one"),
        ("B-PER I-PER PER O", "PER", "no prefix, though `B-PER` has one"),
        ("B-PER I-PER O B", "B", "no prefix, though `B-PER` has one"),
        ("B I o", "o", "no prefix of the same scheme as `B` and `I`"),
        ("B I S U O", "U", "no prefix of the same scheme"),
        ("B_PER I_PER O", "B_PER", "a prefix in another spelling than `B-TYPE`"),
        ("PER-B PER-I O", "PER-B", "a prefix in another spelling"),
        ("b i o", "b", "a prefix in another spelling"),
        ("b-PER i-PER", "b-PER", "unknown prefix `b-`"),
        ("BB-PER II-PER O", "BB-PER", "unknown prefix `BB-`"),
        ("bb-PER o", "bb-PER", "unknown prefix `bb-`"),
    ],
)
def test_tags_of_no_scheme_are_named(labels, odd, message):
    """A tag that does not fit the scheme of the others is found, with the reason."""
    found, reason = find_malformed_tag(labels.split())

    assert found == odd
    assert re.match(message, reason)


@pytest.mark.parametrize(
    "labels",
    [
        *SCHEMES.values(),
        "NOUN VERB -LRB- NN-SBJ",
        "N O ^ S Z V A ! D P & T X Y # @ ~ U E $ , G L M",
        "b i o n v a d",
        "n-s---mn- c--------",
        "PER LOC GPE-LOC O",
        "B-creative-work I-creative-work O",
        "O",
    ],
)
def test_tags_without_prefixes_are_no_fault(labels):
    """Parts of speech and plain types are valid, also if they look like a prefix."""
    assert find_malformed_tag(labels.split() if isinstance(labels, str) else labels) is None


@cache
def valid_paths(scheme, num_words):
    """Return all valid sequences of label numbers."""
    labels, found = SCHEMES[scheme], []
    for path in product(range(len(labels)), repeat=num_words):
        rows = [[labels[number] for number in path]]
        if (scheme == "IOE2" or is_strict(rows, labels)) and (scheme == "IOB2" or is_strict_at_ends(rows, labels)):
            found.append(path)
    return np.array(found)


@given(scheme=st.sampled_from(sorted(SCHEMES)), seed=st.integers(0, 2**32 - 1), num_words=st.integers(1, 4))
def test_no_strict_tags_are_likelier(scheme, seed, num_words):
    """Decoded tags have the largest sum of logits among all valid sequences."""
    labels, allowed = SCHEMES[scheme], valid_paths(scheme, num_words)
    logits = np.random.default_rng(seed).normal(size=(num_words, len(labels))).astype(np.float32)

    found = best_tags(logits, labels, strict=scheme != "IOE2", strict_ends=scheme != "IOB2")

    sums = logits[np.arange(num_words), allowed].sum(axis=1)
    assert tuple(found) in map(tuple, allowed)
    assert logits[np.arange(num_words), found].sum() == pytest.approx(sums.max(), abs=1e-5)


def test_most_probable_tags_without_a_strict_sequence():
    """If no sequence is valid, the most probable tags are kept."""
    labels = ("B-X", "E-X")

    assert best_tags(np.float32([[0, 1]]), labels, strict_ends=True).tolist() == [1]
    assert best_tags(np.float32([[0, 1], [0, 1]]), labels, strict_ends=True).tolist() == [0, 1]


@pytest.mark.parametrize(
    ("tags", "strict", "strict_ends"),
    [
        ("B-LOC I-LOC O B-PER", True, False),
        ("B-X I-X E-X S-X", True, True),
        ("B-X L-X U-X O", True, True),
        ("I-X E-X E-X", False, True),
        ("B-LOC I-PER", False, False),
        ("NOUN VERB", False, False),
        ("O", True, True),
    ],
)
def test_strict_schemes_are_recognised(tags, strict, strict_ends):
    """Tags are strict if each entity begins, or ends, as its scheme requires."""
    assert is_strict([["O"], tags.split()]) == strict
    assert is_strict_at_ends([["O"], tags.split()]) == strict_ends
