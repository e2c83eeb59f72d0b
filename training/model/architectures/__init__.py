"""Families of encoders that load from Hugging Face's layout: their config keys and weight names, one file a family.

The network itself is in `training.model.encoder`, described by the options of `EncoderConfig`.
"""

from __future__ import annotations

from training.model.architectures import albert, bert, distilbert, electra, mpnet, roberta
from training.model.architectures.base import Architecture

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
    )
}
"""Architecture of each `model_type` in `config.json`."""
