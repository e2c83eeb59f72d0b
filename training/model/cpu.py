"""Faster training steps on CPUs: malloc that keeps memory, cheap dropout, attention as batched matrix products.

PyTorch's operations are made for GPUs first. On CPUs, dropout draws a float for every element (a quarter of a step),
the backward pass of scaled_dot_product_attention is five times as slow as plain matrix products, and malloc returns
large tensors to the system, which maps and clears them again at the next step. `benchmarks/training_step.py` measures
this.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Parameters of mallopt(3)."""


def keep_memory() -> None:
    """Make malloc keep freed memory for the next step: a fresh page from the system costs microseconds.

    Does nothing if the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**26)


def keep_mask(shape: torch.Size, dropout: float, dtype: torch.dtype) -> Tensor:
    """Return 1 where dropout keeps and 0 where it drops; each decision takes 16 bits of PyTorch's generator."""
    size = math.prod(shape)
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:size]
    return torch.ge(bits, round(dropout * 2**16) - 2**15, out=torch.empty(size, dtype=dtype)).view(shape)


def attention(qkv_3BHLK: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Compute scaled dot-product attention [B, H, L, K], keeping the probabilities for the backward pass.

    Args:
        qkv_3BHLK: queries, keys and values.
        mask: bool, true where a token may attend, or floats to add to the scores; broadcast to [B, H, L, L].
        dropout: dropout rate of the probabilities.
    """
    _, batch, heads, length, size = qkv_3BHLK.shape
    query, key, value = qkv_3BHLK.contiguous().view(3, batch * heads, length, size).unbind(0)
    scores = torch.bmm(query * size**-0.5, key.transpose(1, 2))
    if mask is not None:
        if mask.dtype != torch.bool:
            bias = mask.to(scores.dtype)
        else:
            bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, torch.finfo(scores.dtype).min)
        scores = (scores.view(batch, heads, length, length) + bias).view_as(scores)
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    if dropout:
        probabilities = probabilities * keep_mask(probabilities.shape, dropout, probabilities.dtype)
        value = value * (1 / (1 - dropout))
    return torch.bmm(probabilities, value).view(batch, heads, length, size)
