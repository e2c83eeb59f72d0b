"""What makes a training step fast on a CPU: memory that is kept, cheap random numbers, attention as batched products.

PyTorch's own operations are made for GPUs first. On CPUs its dropout draws a float for every element (a quarter of a
step), scaled_dot_product_attention goes backward at a fifth of the speed of plain products, and malloc returns large
tensors to the system, to be mapped and cleared again at the next step. `benchmarks/training_step.py` measures it.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
"""Of mallopt(3)."""


def keep_memory() -> None:
    """Let malloc keep what tensors free, for the next step; a page that comes fresh from the system costs microseconds.

    Does nothing where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 2**26)


def keep_mask(shape: torch.Size, dropout: float, dtype: torch.dtype) -> Tensor:
    """1 where dropout keeps, 0 where it drops; a decision takes 16 random bits of PyTorch's generator."""
    size = math.prod(shape)
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:size]
    return torch.ge(bits, round(dropout * 2**16) - 2**15, out=torch.empty(size, dtype=dtype)).view(shape)


def attention(qkv_3BHLK: Tensor, mask: Tensor | None, dropout: float) -> Tensor:
    """Scaled dot-product attention [B, H, L, K] that keeps its probabilities for the way back.

    Args:
        qkv_3BHLK: queries, keys and values.
        mask: bool, false where not to look; broadcast to [B, H, L, L].
        dropout: of the probabilities.
    """
    _, batch, heads, length, size = qkv_3BHLK.shape
    query, key, value = qkv_3BHLK.contiguous().view(3, batch * heads, length, size).unbind(0)
    scores = torch.bmm(query * size**-0.5, key.transpose(1, 2))
    if mask is not None:
        bias = torch.zeros(mask.shape, dtype=scores.dtype).masked_fill_(~mask, torch.finfo(scores.dtype).min)
        scores = (scores.view(batch, heads, length, length) + bias).view_as(scores)
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
    if dropout:
        probabilities = probabilities * keep_mask(probabilities.shape, dropout, probabilities.dtype)
        value = value * (1 / (1 - dropout))
    return torch.bmm(probabilities, value).view(batch, heads, length, size)
