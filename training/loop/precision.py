"""Precision of matrix products: fp32 or bf16 autocast."""

from __future__ import annotations

import torch

from training.loop.types import Dtype


def autocast(dtype: Dtype, device: torch.device) -> torch.autocast:
    """Return a context for a forward pass; `auto` is bf16 if the hardware multiplies bf16 matrices."""
    return torch.autocast(device.type, torch.bfloat16, enabled=autocast_dtype(dtype, device) == torch.bfloat16)


def autocast_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """Return the dtype of matrix products."""
    return torch.bfloat16 if dtype == "bf16" or (dtype == "auto" and has_bf16(device)) else torch.float32


def has_bf16(device: torch.device) -> bool:
    """Return whether the hardware multiplies bf16 matrices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu.get_capabilities().get("avx512_bf16"))
