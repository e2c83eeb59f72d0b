"""Tests of variants of texts: words are replaced, all else stays, in every kind of tokenizer."""

import json
from dataclasses import replace

import numpy as np
import pytest

from tasks.masked_lm import MaskedLMSettings
from tasks.tokenizer import Tokenizer
from tests.toy_tokenizers import KINDS
from tests.training.distillation.test_tasks import recipe_of, taught  # noqa: F401  (fixtures)
from training.distillation.augmentation import MaskedWords, load_masked_words, replace_words, text_variants
from training.distillation.tasks import distil_task
from training.task_card import read_task_card

TEXTS = ["The old cat, the house; a dog.", "1234 (a.b@c.org)", "我们喜欢读书", "!? ...", "Häuser déjà vu " * 40]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_only_words_are_replaced(kind):
    """Punctuation and spaces stay where they are, whatever the network says; texts without words stay."""
    task = MaskedWords(Tokenizer(KINDS[kind]()), MaskedLMSettings(max_seq_length=64))
    rng = np.random.default_rng(0)

    def run(arrays):
        shape = (*arrays["input_ids"].shape, 15)
        return {"tokens": rng.integers(task.tokenizer.vocab_size, size=shape), "scores": 9 * rng.normal(size=shape)}

    found = replace_words(task, run, TEXTS, seed=(0, 0))

    def without_words(text):
        return [char for char in text if not char.isalnum()]

    assert found[3] == TEXTS[3]
    for before, after in zip(TEXTS, found, strict=True):
        assert without_words(after) == without_words(before)
        assert after.split()[64:] == before.split()[64:]
    assert sum(before != after for before, after in zip(TEXTS, found, strict=True)) >= 2


def test_a_text_with_the_mask_token_stays(checkpoint):
    """A text that has the mask token itself stays as it is, and others get words for their own masks."""
    texts = ["the old [MASK] sees a house", "the old cat sees a house"]

    found = [replace_words(*load_masked_words(checkpoint), texts, seed=(0, number)) for number in range(4)]

    assert {variants[0] for variants in found} == {texts[0]}
    assert {variants[1] for variants in found} != {texts[1]}
    assert not any("[MASK]" in variants[1] for variants in found)


def test_a_trained_network_puts_words_of_its_language(checkpoint, tmp_path):
    """Variants are made once, differ from each other, and hold words of the training text."""
    loads = []

    def load():
        loads.append(1)
        return load_masked_words(checkpoint)

    texts = ["the old cat sees a house", "a dog sleeps"]
    found, again = (text_variants(tmp_path, {"texts": "a"}, texts, 3, load) for _ in range(2))

    assert found == again
    assert len(loads) == 1
    assert [len(variants) for variants in found] == [3, 3]
    assert len({*found[0]}) > 1
    assert all(len(text.split()) == 6 for text in found[0])


def test_variants_are_more_data(recipe_of, alone, capsys):  # noqa: F811
    """A run has the texts and their variants, for which only the teacher speaks."""
    recipe = recipe_of("classification", num_epochs=1, augment=2)
    path = distil_task(recipe, alone)

    assert "1,200 examples without labels" in capsys.readouterr().out
    (variants,) = (recipe.run_dir.parent / "teacher-outputs").glob("variants-*.json")
    assert all(len(item) == 2 for item in json.loads(variants.read_text())["variants"])
    assert read_task_card(path).provenance["recipe"]["augment"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "tagging", "augment": 1}, "--augment is for classification and regression, not for tagging"),
        ({"augment_with": "x"}, "has no effect here: it needs --augment"),
    ],
)
def test_mistakes(changes, message, recipe_of):  # noqa: F811
    """Flags without effect are refused."""
    with pytest.raises(ValueError, match=message):
        replace(recipe_of("classification"), **changes)
