"""Activation function that a checkpoint of sentence-transformers (a cross-encoder) names.

Such a network has one output, and the library applies the function to it. Releases before 4 name the function in
`config.json` as `sbert_ce_default_activation_function`, releases 4 and 5 as `sentence_transformers.activation_fn`;
release 6 names it in `config_sentence_transformers.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.regression import Activation
from tasks.text.json_files import read_optional_json
from training.checkpoint.reader import CONFIG_FILE
from training.checkpoint.sentence_transformers import ACTIVATION_CLASSES, MODEL_CONFIG_FILE

_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""Last part of the class's name -> setting."""


def with_activation(config: Mapping[str, Any], activation: Activation) -> dict[str, Any]:
    """Return the values of `config.json`, with the function named for sentence-transformers and transformers.

    A pipeline of transformers applies a sigmoid to one output, unless `problem_type` is regression.
    """
    name, problem = ACTIVATION_CLASSES[activation], config.get("problem_type")
    library = {**_library(config), "activation_fn": name}
    named = {**config, "sentence_transformers": library, "sbert_ce_default_activation_function": name}
    if activation == "identity":
        return named | {"problem_type": "regression"}
    return named | ({"problem_type": None} if problem == "regression" else {})


def read_activation(
    checkpoint: Path, directory: Path, config: Mapping[str, Any], *, remedy: str = "give --activation"
) -> Activation | None:
    """Return the activation function of a checkpoint; None if its files name none.

    Args:
        checkpoint: folder that the user gave.
        directory: folder of `config.json`, perhaps a subfolder.
        config: values of `config.json`.
        remedy: what a user can do about a function that is not supported.

    Raises:
        ValueError: naming the file and the key of a function that is not supported, or of two that differ.
    """
    path, of_library = directory / CONFIG_FILE, checkpoint / MODEL_CONFIG_FILE
    key = "sbert_ce_default_activation_function"
    named = {
        f"`{path}` (sentence_transformers.activation_fn)": _library(config).get("activation_fn"),
        f"`{path}` ({key})": config.get(key),
        f"`{of_library}` (activation_fn)": read_optional_json(of_library).get("activation_fn"),
    }
    found: dict[Activation, str] = {}
    for source, name in named.items():
        if name is None:
            continue
        package, _, kind = str(name).rpartition(".")
        if kind not in _ACTIVATIONS or not f"{package}.".startswith("torch.nn."):
            known = ", ".join(f"torch.nn.{item}" for item in _ACTIVATIONS)
            raise ValueError(
                f"unsupported activation function `{str(name)[:60]}` in {source} (one of: {known}); {remedy}"
            )
        found.setdefault(_ACTIVATIONS[kind], source)
    if len(found) > 1:
        (first, source), (second, other) = found.items()
        raise ValueError(f"{source} names the function `{first}`, {other} `{second}`; {remedy}")
    return next(iter(found), None)


def is_cross_encoder(checkpoint: Path, config: Mapping[str, Any]) -> bool:
    """Return whether sentence-transformers wrote a checkpoint, as the arguments of `read_activation` show.

    It applies a sigmoid to one output if no function is named.
    """
    is_release_6 = read_optional_json(checkpoint / MODEL_CONFIG_FILE).get("model_type") == "CrossEncoder"
    return "sentence_transformers" in config or is_release_6


def _library(config: Mapping[str, Any]) -> Mapping[str, Any]:
    values = config.get("sentence_transformers")
    return values if isinstance(values, Mapping) else {}
