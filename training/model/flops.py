"""How many floating point operations training takes, and how many the hardware can do: what MFU is made of.

Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): the operations that the network needs for its real tokens,
whatever is computed beside them (padding, recomputation), over what the hardware could have done in that time.
"""

from __future__ import annotations

import re
import time

import torch

from training.model.encoder import BertConfig

PEAKS = {
    **{"H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12},
    **{"L40S": 362e12, "L40": 181e12, "L4": 121e12, "A10": 125e12, "V100": 125e12},
}
"""Dense bf16 (V100: fp16) FLOP/s out of NVIDIA's data sheets, by words of the device's name, the first that fit."""


def flops_per_token(
    config: BertConfig, *, length: int, predicted: float, frozen: bool = False, generator_layers: int = 0
) -> float:
    """FLOPs of forward and backward for a token: 6 E + 12 L D S + 6 p (D V + D^2) + 6 R.

    E are the parameters of the layers' matrices (every one a multiplication and an addition forward, twice that
    backward), 12 L D S the two products of attention, then the masked LM head on the tokens predicted, and R the
    parameters of a BiLSTM's matrices. A frozen encoder only runs forward: 2 E + 4 L D S. With gradual unfreezing
    all layers count, also those that do not train yet.

    Args:
        length: S, tokens in a sequence.
        predicted: p, share of the tokens that reach the masked LM head; 0 in fine-tuning.
        frozen: whether the encoder does not train.
        generator_layers: of replaced token detection, which count as the network's own do; the masked LM head counts
            twice then, and the detector's with D^2.
    """
    hidden, layers = config.hidden_size, max(config.states_read) * len(config.directions) + generator_layers
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    encoder = 2 * weights + 4 * layers * hidden * length
    head = hidden * config.vocab_size + config.output_size * hidden
    if generator_layers:
        encoder, head = encoder + 2 * hidden**2, 2 * head
    return (1 if frozen else 3) * encoder + 6 * predicted * head + 6 * _bilstm_weights(config)


def _bilstm_weights(config: BertConfig) -> int:
    """Parameters of the matrices: four gates from input and own state, in two directions and two layers."""
    size, states = config.bilstm_size, len(config.states_read) if config.state_combination == "concat" else 1
    below = config.hidden_size * len(config.directions) * states
    return 2 * 4 * size * ((below + size) + (2 * size + size))


def peak_flops(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of matrix products: the data sheet's where it is known, else what large products reach here and now."""
    if device.type == "cuda" and dtype == torch.bfloat16:
        name = torch.cuda.get_device_name(device)
        if peak := next((value for part, value in PEAKS.items() if re.search(rf"\b{part}\b", name)), None):
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
