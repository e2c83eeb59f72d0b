"""Write the files that make an embedding checkpoint a sentence-transformers folder, in addition to its network.

`modules.json` names the stages: Transformer (the folder itself), Pooling, then Dense and Normalize as the settings have
them. Any version of the library from 2 on reads the folder, and so does `training.checkpoint.sentence_transformers`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from tasks.embedding import NORMALIZE, EmbeddingSettings, Pooling, activation_of
from training.checkpoint.reader import CONFIG_FILE
from training.checkpoint.sentence_transformers import (
    ACTIVATION_CLASSES,
    LENGTH_FILES,
    MODEL_CONFIG_FILE,
    MODULES_FILE,
    POOLING_FLAGS,
)
from training.checkpoint.weights import WEIGHTS_FILE, save_weights

_TYPES = "sentence_transformers.models"


def write_modules(directory: Path, settings: EmbeddingSettings, dense: nn.ModuleDict, hidden_size: int) -> None:
    """Write the modules after the network.

    Args:
        dense: linear layers by their place in `settings.layers`.
        hidden_size: size of the network's hidden states.
    """
    kinds = ["Transformer", "Pooling"]
    folders = ["", "1_Pooling"]
    _write_json(directory / folders[1] / CONFIG_FILE, _pooling_config(settings.poolings, hidden_size))
    for index, layer in enumerate([*settings.layers, *[NORMALIZE] * settings.normalize]):
        kinds.append("Dense" if activation_of(layer) else "Normalize")
        folders.append(f"{len(folders)}_{kinds[-1]}")
        if activation := activation_of(layer):
            folder, linear = directory / folders[-1], dense[str(index)]
            assert isinstance(linear, nn.Linear)
            sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
            options = {"bias": linear.bias is not None, "activation_function": ACTIVATION_CLASSES[activation]}
            _write_json(folder / CONFIG_FILE, sizes | options)
            weights = {f"linear.{name}": value for name, value in linear.state_dict().items()}
            save_weights(weights, folder / WEIGHTS_FILE)
    modules = [
        {"idx": index, "name": str(index), "path": folder, "type": f"{_TYPES}.{kind}"}
        for index, (folder, kind) in enumerate(zip(folders, kinds, strict=True))
    ]
    _write_json(directory / MODULES_FILE, modules)
    _write_json(directory / LENGTH_FILES[0], {"max_seq_length": settings.max_seq_length, "do_lower_case": False})
    _write_json(directory / MODEL_CONFIG_FILE, model_values(settings))


def model_values(settings: EmbeddingSettings) -> dict[str, Any]:
    """Return the values of `config_sentence_transformers.json`."""
    return {
        "prompts": dict(settings.prompts),
        "default_prompt_name": settings.default_prompt_name,
        "similarity_fn_name": settings.similarity_fn_name,
    }


def _pooling_config(poolings: Sequence[Pooling], hidden_size: int) -> dict[str, Any]:
    """Return the flags that all versions read; a list, which version 6 reads, for poolings in another order."""
    if list(poolings) == [pooling for pooling in POOLING_FLAGS.values() if pooling in poolings]:
        flags = {flag: pooling in poolings for flag, pooling in POOLING_FLAGS.items()}
        return {"word_embedding_dimension": hidden_size, **flags}
    return {"embedding_dimension": hidden_size, "pooling_mode": list(poolings)}


def _write_json(path: Path, values: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
