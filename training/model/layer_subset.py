"""A network with some layers of another, as DistilBERT starts with layers of its teacher (Sanh et al. 2019)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from training.model.heads import BertModel
from training.model.modernbert_encoder import ModernBertConfig

_LAYER = re.compile(r"bert\.layers\.(\d+)\.")


def take_layers(model: BertModel, layers: Sequence[int]) -> BertModel:
    """Return a copy of a network with some of its layers.

    Args:
        layers: numbers of the layers, from 0, in their new order.

    Raises:
        ValueError: for a layer that does not exist, or cannot stand in its new place.
    """
    config = model.config
    if config.shares_layers:
        raise ValueError("--take-layers: all layers of this network have the same weights; there is nothing to choose")
    if wrong := [number for number in layers if not 0 <= number < config.num_hidden_layers]:
        raise ValueError(
            f"--take-layers `{wrong[0]}`: the checkpoint has {config.num_hidden_layers} layers, numbered from 0"
        )
    is_local = config.is_local if isinstance(config, ModernBertConfig) else lambda number: False
    if moved := next((pair for pair in enumerate(layers) if is_local(pair[0]) != is_local(pair[1])), None):
        raise ValueError(
            f"--take-layers: layer `{moved[1]}` cannot be layer {moved[0]}, as one of both attends to all tokens, the "
            "other to neighbours; the first layers can be taken"
        )
    places = {number: place for place, number in enumerate(layers)}
    if len(places) < len(layers):
        raise ValueError(f"--take-layers `{' '.join(map(str, layers))}`: a layer is named twice")
    labels = {"num_labels": model.classifier.out_features} if model.has_labels else {}  # type: ignore[union-attr]
    student = type(model)(replace(config, num_hidden_layers=len(layers)), **labels)
    student.dense = model.dense
    weights = {}
    for name, value in model.state_dict().items():
        found = _LAYER.match(name)
        if not found:
            weights[name] = value
        elif int(found[1]) in places:
            weights[f"bert.layers.{places[int(found[1])]}.{name[found.end() :]}"] = value
    if weights.keys() != student.state_dict().keys():
        raise ValueError("--take-layers: the first layer of this network differs from the others; name 0 first")
    student.load_state_dict(weights)
    return student
