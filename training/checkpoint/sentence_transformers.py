"""Read a sentence-transformers folder: pooling, layers after it, maximum length and similarity.

Such a folder contains `modules.json`, a list of stages: Transformer (the checkpoint), Pooling, then any of Dense and
Normalize; that of a SparseEncoder has MLMTransformer (or Transformer) and SpladePooling; that of PyLate's ColBERT has
Transformer and Dense. Layouts of the versions 2 to 6 are read. A value that changes vectors and is not known is an
error.
"""

from __future__ import annotations

import os
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from tasks.embedding import NORMALIZE, Activation, EmbeddingSettings, Pooling, SimilarityName, dense_layer
from tasks.schema import FieldError, read_value
from tasks.sparse_embedding import SparseActivation, SparseEmbedding, SparsePooling
from tasks.text.json_files import read_flag, read_json, read_json_value, read_optional_json
from tasks.text.tokenizer import Tokenizer
from tasks.token_embedding import TokenEmbedding, TokenEmbeddingSettings
from training.checkpoint.reader import CONFIG_FILE, load_model
from training.checkpoint.weights import checkpoint_digest, read_weights
from training.model.heads import BertModel

MODULES_FILE = "modules.json"
MODEL_CONFIG_FILE = "config_sentence_transformers.json"
_LIBRARIES = ("sentence_transformers.", "pylate.")
LENGTH_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Settings of the Transformer module. Newer versions write the first; older ones named the file after the family."""


def _transformer_values(task: str, output: str, states: str) -> dict[str, Any]:
    """Return the settings of a Transformer module that have one supported value for a kind of model."""
    modality = {"text": {"method": "forward", "method_output_name": states}}
    return {"transformer_task": task, "module_output_name": output, "modality_config": modality}


_EMBEDDING_VALUES = _transformer_values("feature-extraction", "token_embeddings", "last_hidden_state")
_CROSS_ENCODER_VALUES = _transformer_values("sequence-classification", "scores", "logits")
_SPARSE_VALUES = _transformer_values("fill-mask", "token_embeddings", "logits")
_COLBERT_TYPES = ("ColBERT", "SentenceTransformer")
_COLBERT_LENGTHS = {"query_length": 32, "document_length": 180}
_COLBERT_VALUES: dict[str, Any] = {
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "skiplist_words": list(string.punctuation),
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
}
"""Settings of PyLate's models, and its defaults."""
_READ_OF_TRANSFORMER = ("max_seq_length", "do_lower_case", "unpad_inputs", *_EMBEDDING_VALUES)
POOLING_FLAGS: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of older versions, in the order of the parts of a vector."""
_MEAN_FLAG = "pooling_mode_mean_tokens"
ACTIVATION_CLASSES: dict[Activation, str] = {
    "identity": "torch.nn.modules.linear.Identity",
    "tanh": "torch.nn.modules.activation.Tanh",
    "relu": "torch.nn.modules.activation.ReLU",
    "gelu": "torch.nn.modules.activation.GELU",
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "silu": "torch.nn.modules.activation.SiLU",
}
"""Activation function of a Dense module -> class that its config names."""
_DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"
_VECTOR, _TOKEN_VECTORS = "sentence_embedding", "token_embeddings"


@dataclass(frozen=True)
class _Module:
    """One stage of a folder."""

    kind: str
    path: Path

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG_FILE

    def read_config(self) -> dict[str, Any]:
        """Return the settings; empty without a file."""
        return read_optional_json(self.config_path)


def checkpoint_directory(directory: Path) -> Path:
    """Return the folder of the Transformer module, or `directory` itself for any other layout.

    Raises:
        ValueError: if `modules.json` is broken or does not start with a Transformer.
    """
    if not (modules := _modules(directory)):
        return directory
    if modules[0].kind not in ("Transformer", "MLMTransformer"):
        raise ValueError(
            f"`{directory / MODULES_FILE}` starts with a module `{modules[0].kind}`; expected `Transformer`"
        )
    return modules[0].path


def folder_settings(directory: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of `EmbeddingSettings` that the folder prescribes; empty for any other layout.

    Raises:
        ValueError: naming the module, pooling or preprocessing that is not supported.
    """
    if not (modules := _modules(directory)):
        return {}
    if len(modules) == 1 or modules[1].kind != "Pooling":
        found = f"`{modules[1].kind}`" if modules[1:] else "nothing"
        raise ValueError(f"`{directory / MODULES_FILE}` has {found} after the Transformer; expected `Pooling`")
    layers = [layer for module in modules[2:] for layer in _layers(module, directory)]
    normalize = layers[-1:] == [NORMALIZE]
    settings = {"pooling": _pooling(modules[1]), "layers": layers[:-1] if normalize else layers, "normalize": normalize}
    length = _transformer_settings(modules[0].path, tokenizer, _EMBEDDING_VALUES)
    config, path = _model_config(directory, "SentenceTransformer"), directory / MODEL_CONFIG_FILE
    if (dimensions := config.get("truncate_dim")) is not None:
        raise ValueError(f"unsupported truncate_dim `{dimensions}` in `{path}`; remove it, and ask for `dimensions`")
    similarity = config.get("similarity_fn_name")
    if similarity not in (None, *get_args(SimilarityName)):
        known = ", ".join(get_args(SimilarityName))
        raise ValueError(f"unsupported similarity_fn_name `{similarity}` in `{path}` (one of: {known})")
    return settings | length | {"similarity_fn_name": similarity, **_prompts(config, path)}


def folder_task(directory: Path) -> str:
    """Return the task that the modules of a folder name; empty if the network decides it."""
    kinds = [module.kind for module in _modules(directory)]
    if "SpladePooling" in kinds:
        return SparseEmbedding.name
    return TokenEmbedding.name if kinds[1:2] == ["Dense"] else ""


def sparse_settings(directory: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of `SparseEmbeddingSettings` that the folder of a SparseEncoder prescribes; empty for others.

    Raises:
        ValueError: naming the module, pooling, activation or preprocessing that is not supported.
    """
    if folder_task(directory) != SparseEmbedding.name:
        return {}
    transformer, *others = _modules(directory)
    path = directory / MODULES_FILE
    if [module.kind for module in others] != ["SpladePooling"]:
        other = next(module.kind for module in others if module.kind != "SpladePooling")
        raise ValueError(f"unsupported module in `{path}`: `{other}`; expected `SpladePooling` alone")
    length = _transformer_settings(transformer.path, tokenizer, _SPARSE_VALUES)
    prompts = _prompts(_model_config(directory, "SparseEncoder"), directory / MODEL_CONFIG_FILE)
    return _splade_pooling(others[0]) | length | prompts


def token_settings(directory: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of `TokenEmbeddingSettings` that a folder prescribes.

    A folder of PyLate states all of them. Of a SentenceTransformer, length and prompts count; empty for other layouts.

    Raises:
        ValueError: naming the module, preprocessing or setting that is not supported.
    """
    if not (modules := _modules(directory)):
        return {}
    length = _transformer_settings(modules[0].path, tokenizer, _EMBEDDING_VALUES)
    path = directory / MODEL_CONFIG_FILE
    if folder_task(directory) != TokenEmbedding.name:
        return length | _prompts(_model_config(directory, "SentenceTransformer"), path)
    config = _model_config(directory, *_COLBERT_TYPES)
    lengths = {key: _value(config, key, default, path) for key, default in _COLBERT_LENGTHS.items()}
    return {
        "max_seq_length": max(lengths.values()),
        **lengths,
        "layers": [layer for module in modules[1:] for layer in _layers(module, directory, _TOKEN_VECTORS)],
        "normalize": True,
        **{key: _value(config, key, default, path) for key, default in _COLBERT_VALUES.items()},
        **_prompts(config, path),
    }


def _value(config: Mapping[str, Any], key: str, default: Any, path: Path) -> Any:
    """Return a setting of PyLate, checked; its default where the folder states none."""
    value = default if config.get(key) is None else config[key]
    try:
        return read_value(value, list[str] if isinstance(default, list) else type(default), key)
    except FieldError as error:
        raise ValueError(f"`{path}`: {error}") from error


def _splade_pooling(module: _Module) -> dict[str, Any]:
    """Return pooling and activation of a SpladePooling module; the library's defaults where it states none."""
    config, path = module.read_config(), module.config_path
    known = {"pooling_strategy": get_args(SparsePooling), "activation_function": get_args(SparseActivation)}
    for key, values in known.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(f"unsupported {key} `{config[key]}` in `{path}` (one of: {', '.join(values)})")
    ignored = ("word_embedding_dimension", "embedding_dimension", "chunk_size")  # sizes, and how to save memory
    if unknown := next((key for key in config if key not in (*known, *ignored)), None):
        raise ValueError(f"unsupported key in `{path}`: `{unknown}` (known: {', '.join((*known, *ignored))})")
    pooling, activation = (config.get(key, values[0]) for key, values in known.items())
    return {"pooling": pooling, "activation": activation}


def cross_encoder_settings(directory: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the settings that the folder of a CrossEncoder prescribes; empty for any other layout.

    Raises:
        ValueError: naming the module, prompt or preprocessing that is not supported.
    """
    path = directory / MODEL_CONFIG_FILE
    config, modules = read_optional_json(path), _modules(directory)
    if not modules or config.get("model_type") != "CrossEncoder":
        return {}
    if modules[1:]:
        raise ValueError(f"unsupported module in `{directory / MODULES_FILE}`: `{modules[1].kind}`")
    if name := _prompts(config, path).get("default_prompt_name"):
        raise ValueError(f"unsupported default_prompt_name `{name}` of a CrossEncoder in `{path}`; set it to null")
    return _transformer_settings(modules[0].path, tokenizer, _CROSS_ENCODER_VALUES)


def load_embedder(directory: Path, settings: EmbeddingSettings | TokenEmbeddingSettings, **options: Any) -> BertModel:
    """Load the network of an embedding, or of token vectors, with its Dense modules.

    Args:
        directory: sentence-transformers folder, or a checkpoint in Hugging Face's layout for settings without layers.
        options: arguments of `load_model`.

    Raises:
        ValueError: naming the file that is missing or does not fit.
    """
    model = load_model(checkpoint_directory(directory), "embedding", **options)
    if settings.layers:
        num_parts = len(settings.poolings) if isinstance(settings, EmbeddingSettings) else 1
        model.dense = read_dense(directory, settings.layers, num_parts * model.config.hidden_size)
    return model


def folder_digest(directory: Path) -> str:
    """Return the SHA-256 of all weights of a folder: those of the network and those of Dense modules, hexadecimal."""
    dense = [module.path for module in _modules(directory) if module.kind == "Dense"]
    return checkpoint_digest(checkpoint_directory(directory), *dense)


def read_dense(directory: Path, layers: Sequence[str], size: int) -> nn.ModuleDict:
    """Read the weights of the Dense modules of a folder.

    Args:
        layers: layers of `EmbeddingSettings` or `TokenEmbeddingSettings`.
        size: size of the vectors before them.

    Returns:
        Linear layers by their place in `layers`.

    Raises:
        ValueError: naming the file that is missing or does not fit.
    """
    is_of_tokens = folder_task(directory) == TokenEmbedding.name
    modules, vector = _modules(directory)[1 if is_of_tokens else 2 :], _TOKEN_VECTORS if is_of_tokens else _VECTOR
    paths = [module.path for module in modules for _ in _layers(module, directory, vector)]
    if len(paths) < len(layers):
        raise ValueError(
            f"`{directory / MODULES_FILE}` must name `{len(layers)}` layers after pooling: {', '.join(layers)}"
        )
    dense = nn.ModuleDict()
    for index, layer in enumerate(layers):
        if layer != NORMALIZE:
            dense[str(index)] = linear = _read_linear(paths[index], size)
            size = linear.out_features
    return dense


def _modules(directory: Path) -> list[_Module]:
    """Return the modules in order; none for any other layout."""
    path = directory / MODULES_FILE
    if not path.is_file():
        return []
    try:
        types = [(str(item["type"]), directory / item["path"]) for item in read_json_value(path)]
    except (KeyError, TypeError, AttributeError):
        types = []
    if not types:
        raise ValueError(f"`{path}` must be a list of modules, each with `type` and `path`")
    if other := next((name for name, _ in types if not name.startswith(_LIBRARIES)), None):
        raise ValueError(f"unsupported module in `{path}`: `{other}` is code of its own, not of sentence-transformers")
    top = os.path.normpath(directory)  # links are not followed
    if outside := next((folder for _, folder in types if not Path(os.path.normpath(folder)).is_relative_to(top)), None):
        raise ValueError(f"`{path}` names `{outside}`, which is outside its folder; move the module into it")
    return [_Module(name.rpartition(".")[2], folder) for name, folder in types]


def _layers(module: _Module, directory: Path, vector: str = _VECTOR) -> list[str]:
    """Return the layer of a module over vectors of a name; none for dropout, which changes nothing here."""
    if module.kind == "Dropout":
        return []
    if module.kind not in ("Dense", "Normalize"):
        raise ValueError(f"unsupported module in `{directory / MODULES_FILE}`: `{module.kind}`")
    config, path = module.read_config(), module.config_path
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, _VECTOR, vector):
            raise ValueError(f"unsupported {key} `{config[key]}` in `{path}`; expected `{vector}`")
    if module.kind == "Normalize":
        return [NORMALIZE]
    if config.get("use_residual"):
        raise ValueError(f"unsupported use_residual `{config['use_residual']}` in `{path}`; expected `false`")
    name = config.get("activation_function", _DEFAULT_ACTIVATION)
    short = str(name).rpartition(".")[2]
    known = {full.rpartition(".")[2]: activation for activation, full in ACTIVATION_CLASSES.items()}
    if short not in known or name not in (f"torch.nn.{short}", *ACTIVATION_CLASSES.values()):
        names = ", ".join(ACTIVATION_CLASSES.values())
        raise ValueError(f"unsupported activation_function `{name}` in `{path}` (one of: {names})")
    return [dense_layer(known[short])]


def _read_linear(path: Path, size: int) -> nn.Linear:
    config, weights = read_json(path / CONFIG_FILE), read_weights(path)
    has_bias = read_flag(config, "bias", path / CONFIG_FILE, default=True)
    if (given := config.get("in_features")) != size:
        raise ValueError(f"`{path / CONFIG_FILE}`: in_features must be `{size}`, as the vector before: `{given}`")
    if not all(value.isfinite().all() for value in weights.values()):
        raise ValueError(f"weights in `{path}` are NaN or infinite; copy or train them again")
    try:
        with torch.device("meta"):
            linear = nn.Linear(size, config["out_features"], bias=has_bias)
        named = {name.removeprefix("linear."): value for name, value in weights.items()}
        linear.load_state_dict(named, assign=True)
    except (KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"weights in `{path}` do not fit its `{CONFIG_FILE}`: {reason}") from error
    return linear


def _pooling(module: _Module) -> list[Pooling]:
    """Return the poolings of a Pooling module, in the order of their parts of the vector."""
    path = module.config_path
    config = read_json(path)
    if not read_flag(config, "include_prompt", path, default=True):
        raise ValueError(
            f"unsupported include_prompt `false` in `{path}`; set it to true, and give texts without prompts"
        )
    known = ("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt", *POOLING_FLAGS)
    if unknown := next((key for key in config if key not in known), None):
        raise ValueError(f"unsupported pooling in `{path}`: `{unknown}` (known keys: {', '.join(known)})")
    if "pooling_mode" in config:
        named = config["pooling_mode"]
        listed: Any = [named] if isinstance(named, str) else named
        if not isinstance(listed, list) or not listed or not all(mode in get_args(Pooling) for mode in listed):
            known_modes = ", ".join(get_args(Pooling))
            raise ValueError(f"unsupported pooling in `{path}`: `{named}` (one or more of: {known_modes})")
        return listed
    modes = [mode for key, mode in POOLING_FLAGS.items() if read_flag(config, key, path)]  # of older versions
    if modes and _MEAN_FLAG not in config:
        raise ValueError(
            f"unsupported pooling in `{path}`: {_MEAN_FLAG} is missing, and versions of sentence-transformers read "
            f"that differently; set it to `true` for `{', '.join(modes)}` with the mean, to `false` for without"
        )
    if not modes and any(key in config for key in POOLING_FLAGS):
        raise ValueError(f"unsupported pooling in `{path}`: `none`; set one of {', '.join(POOLING_FLAGS)} to `true`")
    return modes or ["mean"]


def _transformer_settings(directory: Path, tokenizer: Tokenizer, supported: Mapping[str, Any]) -> dict[str, Any]:
    """Return the maximum length if the Transformer module states one, and check its other settings."""
    path = next(
        (directory / name for name in LENGTH_FILES if (directory / name).is_file()), directory / LENGTH_FILES[0]
    )
    config = read_optional_json(path)
    for key, value in config.items():
        is_known = key in _READ_OF_TRANSFORMER and value in (None, supported.get(key, value))
        if not is_known and value not in (None, {}):
            raise ValueError(f"unsupported {key} `{value}` in `{path}`; remove it if vectors do not depend on it")
    if read_flag(config, "do_lower_case", path) and not tokenizer.lowercases:
        raise ValueError(
            f"`{path}` sets do_lower_case, but its tokenizer does not; set it to false, and lowercase texts before"
        )
    length = config.get("max_seq_length")
    return {} if length is None else {"max_seq_length": length}


def _model_config(directory: Path, *kinds: str) -> dict[str, Any]:
    """Return the values of `config_sentence_transformers.json`; empty without the file. Raise for another kind."""
    path = directory / MODEL_CONFIG_FILE
    config = read_optional_json(path)
    if (found := config.get("model_type", kinds[0])) not in kinds:
        raise ValueError(f"unsupported model_type `{found}` in `{path}`; expected `{kinds[0]}`")
    return config


def _prompts(config: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return prompts and default prompt; none if all prompts are empty, as newer versions write them."""
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ValueError(f"`{path}`: prompts must be texts by name: `{prompts}`")
    if default not in (None, "query", "document", *prompts):  # the library adds these two, empty
        raise ValueError(
            f"`{path}`: default_prompt_name `{default}` is none of its prompts: {', '.join(prompts) or 'none'}"
        )
    if not any(prompts.values()):
        return {}
    return {
        "prompts": {name: text or "" for name, text in prompts.items()},
        "default_prompt_name": default if prompts.get(default) else None,
    }
