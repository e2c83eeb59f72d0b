"""Results of the client as JSON values."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np


def plain(value: Any) -> Any:
    """Convert dataclasses to objects, and tuples and arrays to lists."""
    if isinstance(value, np.ndarray):
        return np.round(value.astype(float), 6).tolist() if value.dtype.kind == "f" else value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
