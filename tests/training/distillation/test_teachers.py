"""Tests of teachers on other devices than a CPU."""

import numpy as np
import torch

from training.data.examples import Examples
from training.distillation import teachers
from training.distillation.teachers import precision, read_teacher
from training.loop.distributed import World


def world(device="cpu"):
    return World(rank=0, size=1, device=torch.device(device))


def test_gpus_have_another_record(monkeypatch):
    """Outputs in bf16 are not taken for outputs in fp32; those of a CPU keep the record that they always had."""
    monkeypatch.setattr(teachers, "has_bf16", lambda device: True)
    assert precision(world()) == {}
    assert precision(world("cuda")) == {"precision": "bf16"}
    monkeypatch.setattr(teachers, "has_bf16", lambda device: False)
    assert precision(world("cuda")) == {}


def test_teacher_in_bf16(checkpoint, monkeypatch):
    """Vectors in bf16 are nearly those in fp32, and are floats."""
    teacher = read_teacher(checkpoint, "embedding", "mean")
    texts = Examples([("line 1", "a cat sat"), ("line 2", "the dogs ran away")])
    exact = teacher.vectors(texts, world())(slice(0, 2))
    monkeypatch.setattr(teachers, "precision", lambda world: {"precision": "bf16"})
    rounded = teacher.vectors(texts, world())(slice(0, 2))

    assert rounded[0].dtype == np.float32
    assert not np.array_equal(exact, rounded)
    np.testing.assert_allclose(exact, rounded, atol=0.03)
