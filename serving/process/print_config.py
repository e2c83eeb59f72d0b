"""Output of --print-config and --version."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from pydantic_settings import CliSettingsSource

from serving.settings import TRACE_VARIABLE, Settings, read_settings
from tasks.bundle.providers import has_openvino

PACKAGES = ("grpcio", "tokenizers", "numpy")
_PASSWORD = re.compile(r"(?<=//)[^/@]+(?=@)")


def versions() -> str:
    """Return one line with the versions of Bertline and of the packages that its answers depend on."""
    import onnxruntime  # imported for its version: its distribution has one of several names

    names = ("openvino", *PACKAGES) if has_openvino() else PACKAGES
    others = ", ".join(f"{name} {version(name)}" for name in names)
    python = f"Python {platform.python_version()}"
    return f"bertline {version('bertline')} (onnxruntime {onnxruntime.__version__}, {others}, {python})"


def describe_settings(arguments: Sequence[str]) -> str:
    """Return all settings as JSON: name -> value and source (`flag`, the name of a variable, or `default`).

    Passwords in addresses are masked; tokens and keys are in files, not in settings.

    Raises:
        ValueError: when a setting is wrong.
    """
    settings = read_settings(arguments)
    flags = CliSettingsSource(Settings, cli_parse_args=list(arguments))()
    lines = [
        f"  {json.dumps(name)}: {json.dumps({'value': _masked(value), 'from': _source(name, value, flags)})}"
        for name, value in settings.model_dump(mode="json").items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def _source(name: str, value: Any, flags: dict[str, Any]) -> str:
    if name in flags:
        return "flag"
    variable = f"BERTLINE_{name.upper()}"
    if any(key.upper() == variable for key in os.environ):
        return variable
    return TRACE_VARIABLE if name == "trace_endpoint" and value else "default"


def _masked(value: Any) -> Any:
    return _PASSWORD.sub("***", value) if isinstance(value, str) else value
