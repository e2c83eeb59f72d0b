"""Checkpoint -> ONNX graph -> fusion -> quantisation -> quality gate -> model directory.

from export import export_checkpoint
export_checkpoint("runs/demo/checkpoint", "models/demo/1", precision="int8")
"""

from export.pipeline import export_checkpoint
from export.session import ort_run

__all__ = ["export_checkpoint", "ort_run"]
