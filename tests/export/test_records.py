"""Manifests of earlier versions are read like current ones."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from export import card, html_report
from export.autotune.model_directory import read_graph, tune_model_directory
from export.autotune.workload import Workload
from export.records import configuration_of, convert_manifest, precision_of
from export.variant import GraphPrecision
from tasks.manifest import Manifest
from tasks.model_directory import read_model_directory

MODELS = Path(__file__).parents[2] / "models"
SHIPPED = sorted(path.parent for path in MODELS.glob("*/*/manifest.json"))

OLD_TRIALS = [
    {"name": "attention", "value": "joint products", "ratio": 1.0, "tokens_per_s": 9.0, "mean_length": 25.0},
    {
        "name": "together",
        "value": "attention: joint MultiHeadAttention, bias gelu: yes",
        "ratio": 1.0,
        "tokens_per_s": 9.0,
        "mean_length": 25.0,
    },
    {
        "name": "numbers",
        "value": "balanced int8, 2 parts in fp32",
        "ratio": 1.0,
        "tokens_per_s": 9.0,
        "mean_length": 25,
    },
]


def make_old(
    manifest: Manifest,
    *,
    name: str = "balanced int8, 2 parts in fp32",
    products: str = "balanced int8",
    fp32_layers: tuple[str, ...] = (),
) -> Manifest:
    """Return a manifest with the keys and names of earlier versions."""
    graph = {
        "name": name,
        "numbers": {"products": products, "fp32_layers": [*fp32_layers]},
        "form": {**manifest.provenance["graph"]["variant"], "attention": "joint MultiHeadAttention"},
        "tried": OLD_TRIALS,
    }
    data = {"judged_on": {"what": "5 texts", "files": {}, "num_cut": 2}, "calibrated_on": {"what": "x", "files": {}}}
    quality = manifest.scores["quality"]["fp32"]
    scores = {
        "judged_on": "5 texts",
        "fp32_difference": {},
        "quality": {"PyTorch": quality, name: quality},
    }
    return replace(manifest, provenance={**manifest.provenance, "graph": graph, "data": data}, scores=scores)


def test_old_keys_and_names_are_converted(exported):
    """Every old name has a new one, in the record and in the scores."""
    manifest = convert_manifest(make_old(exported["embedding"].manifest, fp32_layers=("a", "b")))

    assert precision_of(manifest) == GraphPrecision(matmul="SmoothQuant int8", fp32_layers=("a", "b"))
    assert configuration_of(manifest).variant.attention == "fused-QKV MultiHeadAttention"
    assert [(trial["name"], trial["value"]) for trial in manifest.provenance["graph"]["trials"]] == [
        ("attention", "fused-QKV MatMul"),
        ("finalists", "attention: fused-QKV MultiHeadAttention, bias gelu: yes"),
        ("precision", "SmoothQuant int8, 2 layers in fp32"),
    ]
    assert manifest.provenance["data"]["evaluated_on"] == {"description": "5 texts", "files": {}, "num_truncated": 2}
    assert manifest.scores["evaluated_on"] == "5 texts"
    assert list(manifest.scores["quality"]) == ["PyTorch", "SmoothQuant int8, 2 layers in fp32"]
    assert convert_manifest(manifest) == manifest


def test_current_manifests_stay_as_they_are(exported):
    """Conversion is safe to apply to any manifest."""
    for directory in exported.values():
        assert convert_manifest(directory.manifest) == directory.manifest


def test_manifest_of_the_first_models():
    """Card and report of a model of the first version work with its manifest as it is."""
    manifest = Manifest.from_json(Path(__file__).with_name("manifest-0.1.json").read_text(encoding="utf-8"))

    assert "numbers" in manifest.provenance["graph"]
    assert precision_of(convert_manifest(manifest)) == GraphPrecision(matmul="static int8")
    assert "| graph | static int8," in card.render(manifest, 1)
    assert "static int8 (this graph)" in html_report.render(manifest, 1)
    assert "times fp32" in html_report.describe_speed(manifest)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.parent.name)
def test_shipped_models_can_be_read(path):
    """Graph, card and report of each model in the repository."""
    directory = read_model_directory(path)

    network, precision = read_graph(directory)

    assert precision == precision_of(directory.manifest)
    assert precision.matmul in ("static int8", "SmoothQuant int8")
    assert set(network.ranges) == set(network.layers)
    assert f"| graph | {precision.name}," in card.render(directory.manifest, 1)
    assert f"{precision.name} (this graph)" in html_report.render(directory.manifest, 1)


def test_tuning_an_old_model_directory_writes_a_current_manifest(tmp_path):
    """The graph record is new; data and scores are converted."""
    place = shutil.copytree(MODELS / "topic/1", tmp_path / "topic/1")
    manifest = read_model_directory(place).manifest
    old = make_old(manifest, name="static int8", products="static int8")
    (place / "manifest.json").write_text(old.to_json(), encoding="utf-8")

    tune_model_directory(place, Workload((5, 9), 65))

    values = json.loads((place / "manifest.json").read_text())
    assert values["provenance"]["graph"].keys() == {"name", "precision", "variant", "trials"}
    assert values["provenance"]["graph"]["precision"] == {"matmul": "static int8", "fp32_layers": []}
    assert values["provenance"]["data"].keys() == {"evaluated_on", "calibrated_on"}
    assert values["scores"]["evaluated_on"] == "5 texts"
