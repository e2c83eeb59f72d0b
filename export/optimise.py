"""Fuse what pays on a CPU: LayerNorm and Gelu.

Not SkipLayerNorm, whose kernel is slower there than Add and LayerNormalization, nor Attention; and bias and Gelu stay
apart, so that the bias can join the integer matrix product after quantisation.
"""

from __future__ import annotations

from pathlib import Path

from export._quiet import quiet
from tasks.manifest import Execution

RECIPE = "LayerNorm and Gelu fused"

EXECUTION = Execution(disabled_optimizers=("SkipLayerNormFusion",))
"""ONNX Runtime would fuse it when it loads the graph."""


def fuse(source: Path, target: Path) -> None:
    """Write the fused graph of `source` to `target`."""
    with quiet():
        from onnxruntime.transformers.fusion_options import FusionOptions  # here, as it takes seconds to import
        from onnxruntime.transformers.optimizer import optimize_model

        options = FusionOptions("bert")
        options.enable_attention = False
        options.enable_embed_layer_norm = False
        options.enable_skip_layer_norm = False
        options.enable_bias_skip_layer_norm = False
        options.enable_bias_gelu = False
        optimize_model(str(source), "bert", optimization_options=options, opt_level=0).save_model_to_file(str(target))
