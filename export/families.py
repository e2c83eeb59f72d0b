"""Families of encoders that can be exported: those that Bertline computes, and others, through Optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from export.network import Network, Weights
from export.optimum_export.exporter import export_network
from export.optimum_export.family import TransformersFamily, read_transformers_family
from export.optimum_export.model import TransformersModel
from export.optimum_export.network import ExportedNetwork
from tasks import AnyTask
from tasks.bundle.manifest import Precision
from training.checkpoint.reader import is_known_family, load_model
from training.checkpoint.task_inference import KnownFamily, read_known_family
from training.model.heads import BertModel

ExportableModel = BertModel | TransformersModel
"""Network in PyTorch."""


@dataclass(frozen=True)
class ExportedFamily(KnownFamily):
    """Family that `training.model` computes and `export.graph` writes."""

    directory: Path
    """Folder of the weights."""

    remark = ""
    """Note for the user."""
    calibrates = True
    """True if int8 graphs can use calibrated ranges."""

    def check(self, precision: Precision, target: str, *, mixed: bool) -> None:
        """Accept any precision and target."""

    def load_model(self, task: AnyTask, num_labels: int | None) -> BertModel:
        """Load the network of a task."""
        return load_model(self.directory, task.network_task, num_labels=num_labels)


Family = ExportedFamily | TransformersFamily


def read_family(directory: Path, values: Mapping[str, Any]) -> Family:
    """Read the family of a checkpoint.

    Args:
        directory: folder of the weights.
        values: values of `config.json`.

    Raises:
        ValueError: naming the file and the key of a network that cannot be exported.
    """
    if not is_known_family(values):
        return read_transformers_family(directory, values)
    known = read_known_family(directory, values)
    return ExportedFamily(known.architecture, known.shape, directory)


def create_network(model: ExportableModel, task: AnyTask) -> Network | ExportedNetwork:
    """Return the network from which graphs are made.

    Raises:
        ValueError: if Optimum cannot export it.
    """
    if isinstance(model, TransformersModel):
        return export_network(model, task)
    return Network(model.config, Weights.from_model(model), task)
