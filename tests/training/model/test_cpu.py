"""The fast CPU operations compute the same as PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from training.model import cpu
from training.model.encoder import Dropout


@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_pytorchs(masked):
    """Attention gives the outputs and gradients of scaled_dot_product_attention."""
    generator = torch.Generator().manual_seed(0)
    qkv = torch.randn(3, 2, 4, 7, 8, generator=generator, requires_grad=True)
    mask = (torch.arange(7) < torch.tensor([[7], [4]]))[:, None, None, :] if masked else None

    ours = cpu.attention(qkv, mask, 0.0)
    theirs = F.scaled_dot_product_attention(*qkv.unbind(0), attn_mask=mask)

    torch.testing.assert_close(ours, theirs)
    weight = torch.randn(ours.shape, generator=generator)
    gradients = [torch.autograd.grad((value * weight).sum(), qkv)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_masks_drop_at_the_given_rate(rate, dtype):
    """A dropout mask drops independent elements at the given rate."""
    torch.manual_seed(0)
    mask = cpu.keep_mask(torch.Size([401, 1001]), rate, dtype).float()

    assert mask.unique().tolist() == [0, 1]
    assert mask.mean().item() == pytest.approx(1 - rate, abs=0.005)
    flat = mask.flatten() - mask.mean()
    for distance in (1, 2, 3, 4, 1001):
        assert (flat[distance:] * flat[:-distance]).mean().abs() < 0.002


def test_attention_drops_probabilities():
    """Attention dropout scales the kept probabilities up, so that the mean of the outputs stays."""
    torch.manual_seed(0)
    qkv = torch.randn(3, 8, 4, 64, 8)
    qkv[2] = 1.0

    context = cpu.attention(qkv, None, 0.25)

    assert context.mean().item() == pytest.approx(1.0, abs=0.01)
    assert context.std().item() > 0.01


def test_dropout_scales_kept_elements_and_skips_evaluation():
    """Dropout scales the kept elements in training, with and without a residual, and does nothing in evaluation."""
    torch.manual_seed(0)
    dropout, ones = Dropout(0.25), torch.ones(1000, 100)

    for value in (dropout(ones), dropout.add(ones, torch.zeros_like(ones))):
        assert sorted(value.unique().tolist()) == pytest.approx([0, 1 / 0.75])
        assert value.mean().item() == pytest.approx(1, abs=0.01)

    assert torch.equal(dropout.eval()(ones), ones)
    assert torch.equal(dropout.add(ones, ones), 2 * ones)
