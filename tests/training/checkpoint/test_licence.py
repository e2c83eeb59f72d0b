"""Tests of licences: of a model card, and of what a checkpoint was trained from."""

import shutil

import pytest

from training.checkpoint.task_card import read_licence
from training.contrastive import ContrastiveRecipe
from training.reports.result import provenance


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A\n", "apache-2.0"),
        ('---\nlicense: "cc-by-4.0"\n---\n', "cc-by-4.0"),
        ("# A\n\nlicense: mit\n", ""),
        ("---\ntags: []\n---\nlicense: mit\n", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_licence_is_that_of_the_metadata(card, expected, tmp_path):
    """Only the metadata at the top of a model card counts, as on the hub."""
    if card is not None:
        (tmp_path / "README.md").write_text(card)

    assert read_licence(tmp_path) == expected


def test_licence_of_what_a_checkpoint_started_from(checkpoint, tmp_path):
    """The provenance of a run has the licence of its checkpoint, if one is stated."""
    licensed = shutil.copytree(checkpoint, tmp_path / "licensed")
    (licensed / "README.md").write_text("---\nlicense: mit\n---\n")
    digests = {"data": {"train": [], "dev": []}, "checkpoint_sha256": "0"}

    def record(path):
        recipe = ContrastiveRecipe(mode="unsupervised", checkpoint=path, train=(path,), run_dir=tmp_path)
        return provenance(path, (), recipe, digests)["checkpoint"]

    assert record(licensed)["licence"] == "mit"
    assert "licence" not in record(checkpoint)
