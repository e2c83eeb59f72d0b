"""Read the activation function that a checkpoint of sentence-transformers (a cross-encoder) names.

Such a network has one output, and the library applies the function to it. Releases before 4 name the function in
`config.json` as `sbert_ce_default_activation_function`, releases 4 and 5 as `sentence_transformers.activation_fn`;
release 6 names it in `config_sentence_transformers.json`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasks.regression import Activation
from tasks.text.json_files import read_json
from training.checkpoint.reader import CONFIG_FILE
from training.checkpoint.sentence_transformers import MODEL_CONFIG_FILE

_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid"}
"""Last part of the class's name -> setting."""
_CLASSES: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
}


def with_activation(config: Mapping[str, Any], activation: Activation) -> dict[str, Any]:
    """Return the values of `config.json`, with the function named for sentence-transformers and transformers.

    A pipeline of transformers applies a sigmoid to one output, unless `problem_type` is regression.
    """
    name, problem = _CLASSES[activation], config.get("problem_type")
    before = config.get("sentence_transformers")
    library = {**(before if isinstance(before, Mapping) else {}), "activation_fn": name}
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
    found: dict[Activation, str] = {}
    for source, name in _named(checkpoint, directory, config):
        found.setdefault(_to_activation(source, name, remedy), source)
    if len(found) > 1:
        (first, source), (second, other) = found.items()
        raise ValueError(f"{source} names the function `{first}`, {other} `{second}`; {remedy}")
    return next(iter(found), None)


def is_cross_encoder(checkpoint: Path, directory: Path, config: Mapping[str, Any]) -> bool:
    """Return whether sentence-transformers wrote a checkpoint, as the arguments of `read_activation` show.

    It applies a sigmoid to one output if no function is named.
    """
    if "sentence_transformers" in config:  # releases 4 and 5
        return True
    return any(read_json(path).get("model_type") == "CrossEncoder" for path in _own_files(checkpoint, directory))


def _own_files(checkpoint: Path, directory: Path) -> list[Path]:
    """Return the library's own configuration files."""
    places = dict.fromkeys([checkpoint / MODEL_CONFIG_FILE, directory / MODEL_CONFIG_FILE])
    return [path for path in places if path.is_file()]


def _named(checkpoint: Path, directory: Path, config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each function that the files name, after its place."""
    path = directory / CONFIG_FILE
    library = config.get("sentence_transformers") or {}
    if not isinstance(library, Mapping):
        raise ValueError(f"`{path}`: sentence_transformers must be an object: `{str(library)[:60]}`")
    places = {
        f"`{path}` (sentence_transformers.activation_fn)": library.get("activation_fn"),
        f"`{path}` (sbert_ce_default_activation_function)": config.get("sbert_ce_default_activation_function"),
    }
    for own in _own_files(checkpoint, directory):
        places[f"`{own}` (activation_fn)"] = read_json(own).get("activation_fn")
    return ((place, name) for place, name in places.items() if name is not None)


def _to_activation(source: str, name: Any, remedy: str) -> Activation:
    package, _, kind = str(name).rpartition(".")
    if kind not in _ACTIVATIONS or not f"{package}.".startswith("torch.nn."):
        raise ValueError(
            f"unsupported activation function `{str(name)[:60]}` in {source} (one of: "
            f"{', '.join(f'torch.nn.{known}' for known in _ACTIVATIONS)}); {remedy}"
        )
    return _ACTIVATIONS[kind]
