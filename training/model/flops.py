"""How many floating point operations training takes, and how many the hardware can do: what MFU is made of.

Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): the operations that the network needs for its real tokens,
whatever is computed beside them (padding, recomputation), over what the hardware could have done in that time.
"""

from __future__ import annotations

import time

import torch

from training.model.bert import BertConfig

PEAKS = {"H200": 989e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12, "A10": 125e12, "V100": 125e12}
"""Dense bf16 (V100: fp16) FLOP/s out of NVIDIA's data sheets, by a part of the device's name, the first that fits."""


def flops_per_token(config: BertConfig, *, length: int, predicted: float) -> float:
    """FLOPs of forward and backward for a token: 6 E + 12 L D S + 6 p (D V + D^2).

    E are the parameters of the layers' matrices (every one a multiplication and an addition forward, twice that
    backward), 12 L D S the two products of attention, and the last term the masked LM head on the tokens predicted.

    Args:
        length: S, tokens in a sequence.
        predicted: p, share of the tokens that reach the masked LM head; 0 in fine-tuning.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    encoder = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    head = hidden * config.vocab_size + hidden**2
    return 6 * encoder + 12 * layers * hidden * length + 6 * predicted * head


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of matrix products: the data sheet's where it is known, else what large products reach here and now."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        if peak := next((value for part, value in PEAKS.items() if part in name), None):
            return peak
    return measured_peak(device, dtype)


def measured_peak(device: torch.device, dtype: torch.dtype, *, size: int = 1024, repeats: int = 10) -> float:
    """FLOP/s of the fastest of some products of square matrices."""
    one, two = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        one @ two
        _wait(device)
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
