"""Conversion to 16-bit weights."""

import pytest

from recipes.mini.to_fp16 import halve
from training.checkpoint.task_card import read_task_card


def test_weights_are_halved_once(checkpoint, tmp_path):
    """The task card stays the same, and an existing result is not written again."""
    halve(checkpoint, tmp_path / "half")
    written = (tmp_path / "half/model.safetensors").stat().st_mtime_ns
    halve(checkpoint, tmp_path / "half")

    size = (tmp_path / "half/model.safetensors").stat().st_size
    assert size < 0.6 * (checkpoint / "model.safetensors").stat().st_size
    assert read_task_card(tmp_path / "half") == read_task_card(checkpoint)
    assert (tmp_path / "half/model.safetensors").stat().st_mtime_ns == written


def test_result_of_another_checkpoint_is_refused(checkpoint, tmp_path):
    """An existing result that comes from another checkpoint is an error."""
    card = read_task_card(checkpoint)
    halve(checkpoint, tmp_path / "half")
    (tmp_path / "half/task.json").write_text(
        (tmp_path / "half/task.json").read_text().replace('"seed": 0', '"seed": 9')
    )
    assert read_task_card(tmp_path / "half") != card

    with pytest.raises(ValueError, match=r"does not come from .* remove it to make it again"):
        halve(checkpoint, tmp_path / "half")
