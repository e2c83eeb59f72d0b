"""Text -> features -> arrays -> outputs -> answers: the code that evaluation, export and server share.

A task turns raw examples into features (`encode`) and a model's outputs into predictions (`decode`). Whatever runs the
model (PyTorch while training, ONNX Runtime while serving), the same two functions stand before and behind it, so that
what was evaluated is what is served. Needs numpy and tokenizers only.
"""

import os

from tasks.base import AnyTask, InvalidExample, InvalidExamplesError, Task
from tasks.registry import TASKS, create_task, settings_from_dict, settings_to_dict

# For whoever runs a model with ONNX Runtime, which else writes a file and calls home when it is imported: export and
# serving, which import this package first.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

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
