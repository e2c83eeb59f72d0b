"""Families of encoders that load from Hugging Face's layout: their config keys and weight names, one file a family.

The network itself is in `training.model.encoder`, described by the options of `EncoderConfig`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.model.architectures import (
    albert,
    bert,
    deberta_v2,
    distilbert,
    electra,
    modernbert,
    mpnet,
    nomic_bert,
    roberta,
)
from training.model.architectures.base import Architecture
from training.model.config import EncoderConfig

ARCHITECTURES: dict[str, Architecture] = {
    item.model_type: item
    for item in (
        bert.ARCHITECTURE,
        distilbert.ARCHITECTURE,
        roberta.ROBERTA,
        roberta.XLM_ROBERTA,
        roberta.CAMEMBERT,
        electra.ARCHITECTURE,
        mpnet.ARCHITECTURE,
        albert.ARCHITECTURE,
        modernbert.ARCHITECTURE,
        nomic_bert.ARCHITECTURE,
        deberta_v2.ARCHITECTURE,
    )
}
"""Architecture of each `model_type` in `config.json`."""


def create_config(values: Mapping[str, Any]) -> EncoderConfig:
    """Return a config from its fields, as `dataclasses.asdict` gives them; a BERT's if they name no `model_type`.

    Raises:
        KeyError, TypeError, ValueError: if it has no such fields.
    """
    return ARCHITECTURES[values.get("model_type", "bert")].config_type(**values)
