"""Record of a graph in its manifest (`provenance.graph`).

"graph": {
  "name": "static int8",
  "precision": {"matmul": "static int8", "fp32_layers": []},
  "variant": {"attention": "fused-QKV MatMul", ...},
  "trials": [{"name": "attention", "value": "MatMul", "ratio": 0.97, ...}, ...]
}

Where another engine than ONNX Runtime runs the graph, "fallback" holds the variant of the second graph, for ONNX
Runtime. Graphs that Optimum wrote have no variant, and the keys "exporter": "optimum" and "pads", false if each text
must be a separate batch because padding changes the outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from export.autotune.search import Trial
from export.graph import AnyNetwork
from export.optimum_export.exporter import ExportedNetwork
from export.targets import TARGETS, default_configuration, target_of
from export.variant import Configuration, GraphPrecision, GraphVariant
from tasks.bundle.manifest import Manifest
from tasks.bundle.providers import CPU

OPTIMUM = "optimum"
"""Value of "exporter" in a graph's record; graphs that Bertline wrote have none."""


def graph_record(
    network: AnyNetwork, precision: GraphPrecision, configuration: Configuration, trials: Sequence[Trial]
) -> dict[str, Any]:
    """Return the record of a graph for its manifest."""
    is_exported = isinstance(network, ExportedNetwork)
    fallback = configuration.fallback
    return {
        "name": precision.name,
        "precision": asdict(precision),
        "variant": {} if is_exported else asdict(configuration.variant),
        "trials": [asdict(trial) for trial in trials],
        **({"fallback": asdict(fallback.variant)} if fallback else {}),
        **({"exporter": OPTIMUM, "pads": network.pads} if is_exported else {}),
    }


def is_exported(manifest: Manifest) -> bool:
    """Return whether Optimum wrote a model directory's graph."""
    return manifest.provenance["graph"].get("exporter") == OPTIMUM


def default_of(manifest: Manifest) -> Configuration:
    """Return the default configuration of a model directory's target, or of ONNX Runtime if engines competed."""
    record, target = manifest.provenance["graph"], target_of(manifest.execution)
    rivals = tuple(item.provider for item in TARGETS.values() if item.name == target.name and item.provider != CPU)
    if any(trial["name"].startswith(rivals) for trial in record["trials"]):
        target = TARGETS[target.name]
    return default_configuration(target if record.get("pads", True) else target.without_padding())


def precision_of(manifest: Manifest) -> GraphPrecision:
    """Return the precision of a model directory's graph."""
    return GraphPrecision(**with_tuples(manifest.provenance["graph"]["precision"]))


def configuration_of(manifest: Manifest) -> Configuration:
    """Return the configuration of a model directory's graph, with that of the fallback graph."""
    record = manifest.provenance["graph"]
    fallback = Configuration(GraphVariant(**record["fallback"]), manifest.fallback) if manifest.fallback else None
    return Configuration(GraphVariant(**record["variant"]), manifest.execution, fallback)


def with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass from JSON, with tuples for lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
