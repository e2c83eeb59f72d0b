"""Floating point operations of training, and the peak of the hardware, for model FLOPs utilisation (MFU).

MFU (Chowdhery et al. 2022, appendix B) is the rate of operations that the network needs for real tokens, without
padding and recomputation, divided by the peak rate of the hardware.
"""

from __future__ import annotations

import re
import time

import torch

from training.model.config import EncoderConfig

PEAKS = {
    **{"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12},
    **{"L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10": 125e12, "V100": 125e12},
}
"""Dense bf16 FLOP/s (V100: fp16) from NVIDIA's data sheets. The first name found in the device's name counts."""


def flops_per_token(
    config: EncoderConfig, *, length: int, predicted: float, frozen: bool = False, generator_layers: int = 0
) -> float:
    """Return the FLOPs of forward and backward for a token: 6 E + 12 L D S + 6 p (D V + D^2) + 6 R.

    E are the parameters of the layers' matrices; each takes a multiplication and an addition forward, and twice that
    backward. 12 L D S are the two matrix products of attention. The next term is the masked LM head on the predicted
    tokens. R are `EncoderConfig.num_further_weights`. A frozen encoder only runs forward: 2 E + 4 L D S. With gradual
    unfreezing all layers count, also those that do not train yet. `EncoderConfig.position_flops` come on top.

    Args:
        length: S, tokens in a sequence.
        predicted: p, fraction of the tokens that reach the masked LM head; 0 in fine-tuning.
        frozen: True if the encoder does not train.
        generator_layers: layers of the generator in replaced-token detection. They count like the encoder's; the masked
            LM head then counts twice, and the discriminator adds D^2.
    """
    hidden, layers = config.hidden_size, config.num_layer_passes + generator_layers
    feed_forward = config.num_feed_forward_matrices * hidden * config.intermediate_size
    weights = layers * (4 * hidden**2 + feed_forward)
    encoder = 2 * weights + 4 * layers * hidden * length + config.position_flops(length)
    head = hidden * config.vocab_size + config.output_size * hidden
    if generator_layers:
        encoder, head = encoder + 2 * hidden**2, 2 * head
    return (1 if frozen else 3) * encoder + 6 * predicted * head + 6 * config.num_further_weights


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the peak FLOP/s of matrix products: from the data sheet if the device is known, else as measured."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        if peak := next((value for part, value in PEAKS.items() if re.search(rf"\b{part}\b", name)), None):
            return peak
    return measured_peak(device, dtype)


def measured_peak(device: torch.device, dtype: torch.dtype, *, size: int = 1024, repeats: int = 10) -> float:
    """Return the FLOP/s of the fastest of some products of square matrices."""
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
