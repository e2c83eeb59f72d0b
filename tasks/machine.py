"""The machine that a choice was measured on, or weights were learnt on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.cpus import CPUINFO, available_cpus, cpu_flags, read_cpuinfo

FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm")
"""What matters to matrix products, as Linux names it."""


def machine(cpuinfo: Path = CPUINFO) -> dict[str, Any]:
    """Its CPU, with the features that matter to matrix products, and the cores that there are for us."""
    flags = cpu_flags(cpuinfo)
    return {
        "cpu": read_cpuinfo(cpuinfo).get("model name", platform.machine()),
        "features": [name for name in FEATURES if name in flags],
        "cores": available_cpus(),
    }


def machine_in_words(found: Mapping[str, Any]) -> str:
    """What `machine` gives, in a line."""
    cores = f"{found['cores']} core{'s' * (found['cores'] != 1)}"
    cpu = f"{found['cpu']} ({', '.join([cores, *found['features']])})"
    return f"{found['gpus']} x {found['gpu']}, {cpu}" if "gpu" in found else cpu
