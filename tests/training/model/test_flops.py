"""Tests of the FLOP counts against PyTorch's counter."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from training.checkpoint.reader import create_model
from training.model.config import EncoderConfig
from training.model.disentangled_encoder import DisentangledConfig
from training.model.flops import flops_per_token, peak_flops
from training.model.modernbert_encoder import ModernBertConfig
from training.model.nomic_encoder import NomicBertConfig

RELATIVE = partial(DisentangledConfig, relative_attention=True, pos_att_type="c2p|p2c", position_biased_input=False)


@pytest.mark.parametrize(
    "config_type",
    [EncoderConfig, ModernBertConfig, NomicBertConfig, partial(RELATIVE, position_buckets=8, conv_kernel_size=3)],
)
def test_flops_are_those_pytorch_counts(config_type):
    """The count agrees with PyTorch's for forward and backward through layers and head, to 1%.

    Projections of relative embeddings do not count: they are done once a batch.
    """
    config = config_type(
        vocab_size=1000, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256
    )
    model = create_model("masked-lm", config, dropout=0.0).train()
    batch, length, predicted = 64, 48, 640
    ids, positions = torch.randint(1000, (batch, length)), torch.arange(predicted)

    with FlopCounterMode(display=False) as counter:
        outputs = model(ids, None, torch.zeros_like(ids), positions)
        outputs["logits"].sum().backward()

    expected = flops_per_token(config, length=length, predicted=predicted / (batch * length)) * batch * length

    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_paper_example():
    """BERT-base at 128 tokens takes 545 MFLOP a token."""
    assert flops_per_token(EncoderConfig(), length=128, predicted=0.15) == pytest.approx(545e6, rel=0.01)
    whole, frozen = (flops_per_token(EncoderConfig(), length=128, predicted=0, frozen=item) for item in (False, True))
    assert whole == 3 * frozen


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA A10G", 1),
    ],
)
def test_peaks_are_of_the_device_itself(name, tera, monkeypatch):
    """The peak is that of the exact device name, and an unknown device is measured."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: name)
    monkeypatch.setattr("training.model.flops.measured_peak", lambda device, dtype: 1e12)

    assert peak_flops(torch.device("cuda"), torch.bfloat16) == tera * 1e12
