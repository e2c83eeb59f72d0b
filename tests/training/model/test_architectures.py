"""Every family of encoders, for every task: the network equals that of transformers, and saves as one."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from tasks.registry import settings_from_dict
from tests.families import CONFIGS, SETTINGS, assert_equal, batch, create, reference_outputs
from training.checkpoint import load_model, read_shape
from training.checkpoint_writer import save_checkpoint
from training.model.architectures import ARCHITECTURES
from training.model.encoder import distance_buckets
from training.model.heads import MODELS
from training.task_card import TaskCard


@pytest.mark.parametrize("task", sorted(MODELS))
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_network_equals_that_of_transformers(kind, task, tmp_path):
    """A checkpoint of transformers gives the same outputs here; saved again, transformers loads the same network."""
    reference = create(kind, task, tmp_path / "theirs")
    inputs = batch(kind)
    theirs = reference_outputs(reference, task, *inputs)

    model = load_model(tmp_path / "theirs", task).eval()
    with torch.no_grad():
        ours = model(*inputs)

    assert_equal(ours, theirs, inputs[1], task)
    settings = settings_from_dict(task, {"max_seq_length": 32, **SETTINGS.get(task, {})})
    card = TaskCard(task=task, settings=settings)
    save_checkpoint(tmp_path / "ours", model, tokenizer_from=tmp_path / "theirs", card=card)
    again, report = type(reference).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not [name for name in report["missing_keys"] if "pooler" not in name and "position_ids" not in name]
    assert_equal(reference_outputs(again.eval(), task, *inputs), theirs, inputs[1], task)
    assert read_shape(tmp_path / "ours") == read_shape(tmp_path / "theirs")


@pytest.mark.parametrize("length", [1, 2, 40])
@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_lengths(kind, length, tmp_path):
    """Sequences of one token and of the maximum length give the outputs of transformers."""
    reference = create(kind, "embedding", tmp_path)
    ids, _, types = batch(kind, 1, length)
    ids = ids.clamp(min=5)  # a row of padding alone has no meaning
    mask = torch.ones_like(ids)

    with torch.no_grad():
        ours = load_model(tmp_path, "embedding").eval()(ids, mask, types)

    assert read_shape(tmp_path).num_positions == 40
    assert_equal(ours, reference_outputs(reference, "embedding", ids, mask, types), mask, "embedding")


def test_distance_buckets_equal_those_of_transformers():
    """The buckets of distances are those of MPNet, also for distances beyond the last."""
    positions = torch.arange(300)
    expected = transformers.models.mpnet.modeling_mpnet.MPNetEncoder.relative_position_bucket(
        positions[None, :] - positions[:, None]
    )

    torch.testing.assert_close(distance_buckets(300, 32), expected)


def test_documentation_lists_every_family():
    """The reference page has a row for each `model_type`, in the order of the code."""
    page = (Path(__file__).parents[3] / "docs/reference/encoders.md").read_text(encoding="utf-8")

    assert re.findall(r"^\| .* \| `([\w-]+)` \|", page, re.MULTILINE)[1:] == list(ARCHITECTURES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_of_the_relative_bias(dtype, tmp_path):
    """A training step on the CPU gives the bias of distances the gradient of transformers."""
    reference = create("mpnet", "embedding", tmp_path).train()
    ids, mask, types = batch("mpnet")
    model = load_model(tmp_path, "embedding", dropout=0.0).train()
    for module in reference.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0

    with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
        ours = model(ids, mask, types)["last_hidden_state"][mask.bool()]
    theirs = reference(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()]
    weights = torch.randn_like(theirs)
    (ours.float() * weights).sum().backward()
    (theirs * weights).sum().backward()

    found, expected = model.bert.relative_bias.weight.grad, reference.encoder.relative_attention_bias.weight.grad
    error = (found - expected).norm() / expected.norm()
    assert error < (1e-4 if dtype == torch.float32 else 0.1)
