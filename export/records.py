"""Record of a graph in its manifest (`provenance.graph`), and conversion of manifests of earlier versions.

"graph": {
  "name": "static int8",
  "precision": {"matmul": "static int8", "fp32_layers": []},
  "variant": {"attention": "fused-QKV MatMul", ...},
  "trials": [{"name": "attention", "value": "MatMul", "ratio": 0.97, ...}, ...]
}

Where OpenVINO runs the graph, "fallback" holds the variant of the graph beside it, for ONNX Runtime. Graphs that
Optimum wrote have no variant, and the keys "exporter": "optimum" and "pads", false if each text must be a
batch of its own because padding changes the outputs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from export.autotune.search import FINALISTS, PRECISION, Trial
from export.graph import AnyNetwork
from export.optimum_export.network import ExportedNetwork
from export.targets import TARGETS, default_configuration, target_of
from export.variant import Configuration, GraphPrecision, GraphVariant
from tasks.manifest import Manifest
from tasks.providers import OPENVINO

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
    if any(trial["name"].startswith(OPENVINO) for trial in record["trials"]):
        target = TARGETS[target.name]
    pads = record.get("pads", True)
    return default_configuration(target if pads else target.without_padding())


def precision_of(manifest: Manifest) -> GraphPrecision:
    """Return the precision of a model directory's graph."""
    return GraphPrecision(**with_tuples(manifest.provenance["graph"]["precision"]))


def configuration_of(manifest: Manifest) -> Configuration:
    """Return the configuration of a model directory's graph, with that of the graph beside it."""
    record = manifest.provenance["graph"]
    fallback = Configuration(GraphVariant(**record["fallback"]), manifest.fallback) if manifest.fallback else None
    return Configuration(GraphVariant(**record["variant"]), manifest.execution, fallback)


def with_tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass from JSON, with tuples for lists."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


# Earlier versions

_TRIALS = {"together": FINALISTS, "numbers": PRECISION}
_ATTENTION = {
    "products": "MatMul",
    "joint products": "fused-QKV MatMul",
    "joint MultiHeadAttention": "fused-QKV MultiHeadAttention",
}


def convert_manifest(manifest: Manifest) -> Manifest:
    """Return a manifest with today's keys and names; current manifests stay as they are."""
    provenance, scores = manifest.provenance, manifest.scores
    if "graph" in provenance and "numbers" in provenance["graph"]:
        provenance = {**provenance, "graph": _convert_graph(provenance["graph"])}
        if "data" in provenance:
            provenance["data"] = _convert_data(provenance["data"])
    if "judged_on" in scores:
        scores = {("evaluated_on" if key == "judged_on" else key): value for key, value in scores.items()}
        scores["quality"] = {_convert_name(name): quality for name, quality in scores["quality"].items()}
    return replace(manifest, provenance=provenance, scores=scores)


def _convert_graph(graph: Mapping[str, Any]) -> dict[str, Any]:
    numbers, form = dict(graph["numbers"]), dict(graph["form"])
    return {
        "name": _convert_name(graph["name"]),
        "precision": {"matmul": _convert_name(numbers.pop("products")), **numbers},
        "variant": {**form, "attention": _ATTENTION.get(form["attention"], form["attention"])},
        "trials": [_convert_trial(trial) for trial in graph["tried"]],
    }


def _convert_name(name: str) -> str:
    """Convert the name of a precision, for example `balanced int8, 2 parts in fp32`."""
    return re.sub(r"(\d+) part(s?) in fp32", r"\1 layer\2 in fp32", name).replace("balanced int8", "SmoothQuant int8")


def _convert_trial(trial: Mapping[str, Any]) -> dict[str, Any]:
    name, value = _TRIALS.get(trial["name"], trial["name"]), trial["value"]
    if name == "attention":
        value = _ATTENTION.get(value, value)
    elif name == FINALISTS:
        value = re.sub(r"(?<=attention: )[^,]+", lambda match: _ATTENTION.get(match[0], match[0]), value)
    elif name == PRECISION:
        value = _convert_name(value)
    return {**trial, "name": name, "value": value}


def _convert_data(data: Mapping[str, Any]) -> dict[str, Any]:
    keys = {"judged_on": "evaluated_on", "what": "description", "num_cut": "num_truncated"}
    return {
        keys.get(name, name): {keys.get(key, key): value for key, value in part.items()} for name, part in data.items()
    }
