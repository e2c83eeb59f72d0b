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

from serving.core.session import engine_versions
from serving.settings import TRACE_VARIABLE, Settings, read_settings

PACKAGES = ("grpcio", "tokenizers", "numpy")
_PASSWORD = re.compile(r'(?<=//)[^/@"]+(?=@)')


def versions() -> str:
    """Return one line with the versions of Bertline and of the packages that its answers depend on."""
    found = {**engine_versions(), **{name: version(name) for name in PACKAGES}, "Python": platform.python_version()}
    return f"bertline {version('bertline')} ({', '.join(map(' '.join, found.items()))})"


def describe_settings(arguments: Sequence[str]) -> str:
    """Return all settings as JSON: name -> value and source (`flag`, the name of a variable, or `default`).

    Passwords in addresses are masked; tokens and keys are in files, not in settings.

    Raises:
        ValueError: when a setting is wrong.
    """
    settings = read_settings(arguments)
    flags = CliSettingsSource(Settings, cli_parse_args=list(arguments))()
    lines = [
        f"  {json.dumps(name)}: {json.dumps({'value': value, 'from': _source(name, value, flags)})}"
        for name, value in settings.model_dump(mode="json").items()
    ]
    return _PASSWORD.sub("***", "{\n" + ",\n".join(lines) + "\n}")


def _source(name: str, value: Any, flags: dict[str, Any]) -> str:
    if name in flags:
        return "flag"
    variable = f"BERTLINE_{name.upper()}"
    if any(key.upper() == variable for key in os.environ):
        return variable
    return TRACE_VARIABLE if name == "trace_endpoint" and value else "default"
