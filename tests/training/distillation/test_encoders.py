"""Tests of the distillation of pretrained encoders: relations between tokens, masked tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from tasks.masked_lm import MaskedLMSettings
from tests.toy import TINY
from tests.training.interruption import interrupted_at
from training.checkpoint.reader import create_model, read_shape
from training.checkpoint.task_card import TaskCard, read_task_card
from training.checkpoint.writer import save_checkpoint
from training.loop.run_directory import read_metrics
from training.objectives.encoder_distillation import relation_loss
from training.pretrain import PretrainRecipe, pretrain


@given(
    heads=st.sampled_from([1, 2, 4]),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    seed=st.integers(0, 5),
)
def test_relations_are_those_of_minilm(heads, lengths, seed):
    """The loss is the KL divergence of softmaxed products, token by token, without padding."""
    rng, longest = np.random.default_rng(seed), max(lengths)
    student, teacher = (torch.tensor(rng.normal(size=(len(lengths), longest, 3 * size))) for size in (4, 8))
    is_token = torch.arange(longest)[None] < torch.tensor(lengths)[:, None]
    expected = 0.0
    for row, length in enumerate(lengths):
        for part in range(3):
            for head in range(heads):
                relations = []
                for states in (student, teacher):
                    own = states[row, :length].chunk(3, -1)[part].chunk(heads, -1)[head]
                    relations.append(torch.softmax(own @ own.T / own.shape[-1] ** 0.5, -1))
                expected += float(F.kl_div(relations[0].log(), relations[1], reduction="sum")) / heads

    assert float(relation_loss(student, teacher, is_token, heads)) == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.fixture(scope="module")
def teacher(checkpoint, tmp_path_factory):
    """Return a masked LM whose random weights are so large that its outputs depend on the text."""
    torch.manual_seed(0)
    model = create_model("masked-lm", replace(read_shape(checkpoint), initializer_range=0.3))
    path = tmp_path_factory.mktemp("teacher") / "large"
    card = TaskCard(task="masked-lm", settings=MaskedLMSettings(max_seq_length=32))
    save_checkpoint(path, model, tokenizer_from=checkpoint, card=card)
    return path


@pytest.fixture
def recipe(corpus_dir, teacher, tmp_path):
    """Return a recipe of a second, with half the teacher's size."""
    shape = {**TINY, "hidden_size": 16, "num_hidden_layers": 1, "num_steps": 60, "dropout": 0.0, "learning_rate": 5e-3}
    return PretrainRecipe(
        corpus=corpus_dir,
        dev_corpus=corpus_dir,
        run_dir=tmp_path / "run",
        objective="distillation",
        teacher=teacher,
        relation_heads=2,
        token_weight=5.0,
        **shape,
    )


def curve(path, name):
    return [line[name] for line in read_metrics(path.parent) if name in line]


@pytest.mark.parametrize("next_sentences", [True, False])
def test_a_student_learns_what_its_teacher_sees(next_sentences, recipe, alone):
    """All losses fall; the checkpoint is a plain masked LM, whose card names the teacher."""
    path = pretrain(replace(recipe, next_sentences=next_sentences), alone)

    for name in ("teacher_mlm", "relations"):
        assert np.mean(curve(path, name)[-5:]) < 0.9 * np.mean(curve(path, name)[:5])
    assert read_task_card(path).provenance["pretraining"]["teachers"][0]["name"] == "large"
    assert "It learnt the outputs of `large` (no licence stated)." in (path / "README.md").read_text()


def test_a_student_equal_to_its_teacher_has_no_loss(recipe, teacher, alone):
    """The teacher itself has all relations and probabilities already."""
    same = {"init": teacher, "num_steps": 1, "learning_rate": 1e-6}
    path = pretrain(replace(recipe, **same), alone)

    assert curve(path, "teacher_mlm") == pytest.approx([0], abs=1e-5)
    assert curve(path, "relations") == pytest.approx([0], abs=1e-5)


def test_modernbert_learns_from_bert(recipe, alone):
    """Families differ in their layers, not in what is compared."""
    path = pretrain(replace(recipe, family="modernbert", next_sentences=False, num_steps=30), alone)

    assert curve(path, "relations")[-1] < curve(path, "relations")[0]


def test_resumed_run_is_the_undisturbed_one(recipe, tmp_path, alone):
    """A run that resumes learns the same from its teacher."""
    whole = pretrain(recipe := replace(recipe, num_steps=8), alone)
    broken = replace(recipe, run_dir=tmp_path / "broken", checkpoint_every=4)
    with interrupted_at(6):
        pretrain(broken, alone)
    resumed = pretrain(broken, alone)

    assert curve(whole, "relations") == curve(resumed, "relations")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"teacher": None}, "--objective distillation needs --teacher"),
        ({"objective": "masked-lm"}, "has no effect here: it is for --objective distillation"),
        ({"relation_heads": 3}, "--relation-heads `3` does not divide the hidden size 16 of the student"),
        ({"teacher_layer": 2}, r"--teacher-layer `2`: `.*` has 2 layers"),
        ({"compile": "on"}, "does not work with --compile on"),
        ({"max_seq_length": 80, "max_position_embeddings": 128}, "has 64 positions, too few for 80 tokens"),
    ],
)
def test_mistakes_are_errors_before_training(changes, message, recipe, alone):
    """The error names the mistake and the remedy."""
    with pytest.raises(ValueError, match=message):
        pretrain(replace(recipe, **changes), alone)
