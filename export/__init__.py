"""Checkpoint -> model directory: the ONNX graph, measured, with its tokenizer and its manifest.

from export import Wishes, export_checkpoint
export_checkpoint("runs/sst2/checkpoint", "models/sst2/1", Wishes(precision="int8"))
"""

import tasks  # noqa: F401  # first: it switches ONNX Runtime's telemetry off
from export.pipeline import Wishes, export_checkpoint
from export.quality_gate import Limits
from export.session import ort_run

__all__ = ["Limits", "Wishes", "export_checkpoint", "ort_run"]
