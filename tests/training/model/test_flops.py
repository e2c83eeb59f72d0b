"""FLOPs are those that PyTorch counts."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from training.checkpoint import create_model
from training.model.bert import BertConfig
from training.model.flops import flops_per_token, measured_peak


def test_flops_are_those_pytorch_counts():
    """Forward and backward of the layers and of the head; what else there is (pooler, next sentences) is little."""
    config = BertConfig(
        vocab_size=1000, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=256
    )
    model = create_model("masked-lm", config, dropout=0.0).train()
    batch, length, predicted = 4, 64, 40
    ids, positions = torch.randint(1000, (batch, length)), torch.arange(predicted)

    with FlopCounterMode(display=False) as counter:
        outputs = model(ids, None, torch.zeros_like(ids), positions)
        outputs["logits"].sum().backward()

    expected = flops_per_token(config, length=length, predicted=predicted / (batch * length)) * batch * length
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.01)


def test_paper_example():
    """BERT-base at 128 tokens takes 545 MFLOP a token."""
    assert flops_per_token(BertConfig(), length=128, predicted=0.15) == pytest.approx(545e6, rel=0.01)


def test_peak_is_measured_where_it_is_unknown():
    """Some GFLOP/s."""
    assert measured_peak(torch.device("cpu"), torch.float32, size=256) > 1e9
