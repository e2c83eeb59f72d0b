"""Export a checkpoint to a model directory: an optimised ONNX graph with tokenizer and manifest.

from export import ExportConfig, export_checkpoint
export_checkpoint("runs/sst2/checkpoint", "models/sst2/1", ExportConfig(precision="int8"))

Stages: source -> network -> graph -> parity -> quality gate -> autotune -> package.
"""

import tasks  # noqa: F401  # first, as it disables ONNX Runtime's telemetry
from export.pipeline import ExportConfig, export_checkpoint
from export.quality_gate import QualityLimits
from export.session import graph_run

__all__ = ["ExportConfig", "QualityLimits", "export_checkpoint", "graph_run"]
