"""Tests of `--column text=x`, the client's spelling of `--columns.text x`."""

import pytest

from training.command_line.command import parse
from training.contrastive import ContrastiveRecipe
from training.evaluate import EvaluateRecipe
from training.finetuning.recipe import FinetuneRecipe

FLAGS = {
    FinetuneRecipe: ["classification", "--checkpoint", "c", "--train", "a.tsv", "--run-dir", "r"],
    EvaluateRecipe: ["c", "--data", "a.tsv"],
    ContrastiveRecipe: ["supervised", "--checkpoint", "c", "--train", "a.tsv", "--run-dir", "r"],
}


@pytest.mark.parametrize("recipe_type", FLAGS)
@pytest.mark.parametrize(
    "flags",
    [
        ["--columns.text", "sentence", "--columns.text-pair", "other"],
        ["--column", "text=sentence", "--column", "text_pair=other"],
        ["--column=text=sentence", "--column", "text-pair=other"],
    ],
)
def test_both_spellings_name_columns(recipe_type, flags):
    """One flag for each field and one repeated flag set the same columns."""
    found = parse(recipe_type, "training.x", "", [*FLAGS[recipe_type], *flags])

    assert (found.columns.text, found.columns.text_pair, found.columns.label) == ("sentence", "other", "label")


def test_a_column_name_can_contain_an_equals_sign():
    """Only the first equals sign separates the field from the column."""
    found = parse(FinetuneRecipe, "training.x", "", [*FLAGS[FinetuneRecipe], "--column", "text=a=b"])

    assert found.columns.text == "a=b"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--column", "sentence"], "--column needs a field and the name of a column, .*: `sentence`"),
        (["--column"], "--column needs a field"),
    ],
)
def test_mistakes_get_one_line(flags, message):
    """A missing column name and an unknown field are errors of one line."""
    with pytest.raises(ValueError, match=message):
        parse(FinetuneRecipe, "training.x", "", [*FLAGS[FinetuneRecipe], *flags])
