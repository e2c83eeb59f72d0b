"""Text to features and outputs to predictions: the code that evaluation, export and serving share.

A task turns raw examples into features (`encode`) and model outputs into predictions (`decode`). PyTorch runs the model
in training and ONNX Runtime in serving, but these two functions are the same, so that the served model gives the
evaluated scores. Depends on numpy and tokenizers only.
"""

import os
import sys

from tasks.base import AnyTask, InvalidExample, InvalidExamplesError, Task
from tasks.registry import TASKS, create_task, settings_from_dict, settings_to_dict

# Export and serving import this package before ONNX Runtime, which otherwise writes a file and sends telemetry when it
# is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
# OpenVINO likewise, unless its package for that is missing, which this entry declares.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]

__all__ = [
    "TASKS",
    "AnyTask",
    "InvalidExample",
    "InvalidExamplesError",
    "Task",
    "create_task",
    "settings_from_dict",
    "settings_to_dict",
]
