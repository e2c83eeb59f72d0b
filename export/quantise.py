"""Dynamic int8: weights of matrix products per output channel, activations as they come.

Embeddings, LayerNorm and softmax stay fp32. On CPUs without VNNI the products of this scheme can saturate: quality is
that of the machine it was checked on.
"""

from __future__ import annotations

from pathlib import Path

from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic

from export._quiet import quiet

RECIPE = "dynamic int8, weights of MatMul per channel"


def quantise(source: Path, target: Path) -> None:
    """Write the int8 graph of `source` to `target`."""
    with quiet():
        quantize_dynamic(
            source,
            target,
            op_types_to_quantize=["MatMul"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            # Shape inference cannot see through fused nodes, whose outputs are float.
            extra_options={"DefaultTensorType": TensorProto.FLOAT},
        )
