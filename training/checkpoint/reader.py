"""Read checkpoints in Hugging Face's layout: config, network and tokenizer.

Any encoder in this layout loads here whose family is in `training.model.architectures`, and our checkpoints load in
transformers. A directory holds `config.json`, `model.safetensors`, `tokenizer.json`, `tokenizer_config.json` and
`vocab.txt`; ours also hold `task.json` (`training.checkpoint.task_card`) and a model card, README.md
(`training.checkpoint.writer`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from tasks.base import MAX_LABELS
from tasks.text.json_files import as_json, read_json
from tasks.text.tokenizer import Tokenizer
from tasks.text.tokenizer_files import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE
from training.checkpoint.tokenizer import read_tokenizer
from training.checkpoint.weights import read_weights
from training.model.architectures import ARCHITECTURES
from training.model.architectures.base import Architecture
from training.model.config import EncoderConfig
from training.model.heads import MODELS, BertModel

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"
"""Configuration of an adapter of peft, which transformers would load on top of the weights."""


def read_config(directory: str | Path, *, any_family: bool = False) -> dict[str, Any]:
    """Read `config.json` of a checkpoint.

    Args:
        any_family: True to accept families that `training.model` does not compute.

    Raises:
        ValueError: if it is missing, broken, or describes a network that this code does not compute.
    """
    path = Path(directory) / CONFIG_FILE
    if not path.is_file():
        raise ValueError(_not_a_checkpoint(Path(directory)))
    values = read_json(path)
    if not any_family:
        architecture_of(values, path)
    if values.get("is_decoder"):
        raise ValueError(f"not an encoder: `{path}` says `is_decoder`")
    if quantization := values.get("quantization_config"):
        method = f" ({quantization.get('quant_method', 'no method')})" if isinstance(quantization, dict) else ""
        raise ValueError(f"`{path}` has a quantization_config{method}; use the checkpoint from before quantisation")
    if (adapter := path.with_name(ADAPTER_FILE)).is_file():
        raise ValueError(
            f"`{adapter}` is an adapter over the weights beside it; merge it into them (peft: merge_and_unload), or "
            "remove it if they already contain it"
        )
    return values


def _not_a_checkpoint(directory: Path) -> str:
    """Return an error message for a path without a checkpoint."""
    if not directory.exists():
        return (
            f"no checkpoint at `{directory}`: there is no such directory; give one with {CONFIG_FILE} and weights, "
            "such as `models/bertline-mini` or the `checkpoint` of a run, or a repository of the Hugging Face hub, as "
            "`org/name`"
        )
    if not directory.is_dir():
        return f"not a checkpoint: `{directory}` is a file; give the directory with {CONFIG_FILE} and weights"
    if (directory / ADAPTER_FILE).is_file():
        return f"`{directory}` holds an adapter alone; merge it into its model, and save that (peft: merge_and_unload)"
    inner = directory / "checkpoint"
    hint = (
        f"`{inner}` is one" if (inner / CONFIG_FILE).is_file() else f"give a directory with {CONFIG_FILE} and weights"
    )
    return f"not a checkpoint: `{directory}` has no {CONFIG_FILE}; {hint}"


def architecture_of(values: Mapping[str, Any], path: Path) -> Architecture:
    """Return the architecture of the family that `config.json` names; BERT's if it names none.

    Raises:
        ValueError: if the family is not supported.
    """
    if not is_known_family(values):
        raise unsupported_encoder(values, path, "`python -m export` takes some others, with Optimum")
    return ARCHITECTURES[values.get("model_type", "bert")].for_config(values)


def is_known_family(values: Mapping[str, Any]) -> bool:
    """Return whether this code computes networks of the family of `config.json`."""
    name = values.get("model_type", "bert")
    return isinstance(name, str) and name in ARCHITECTURES


def unsupported_encoder(values: Mapping[str, Any], path: Path, hint: str) -> ValueError:
    """Return the error for a family that cannot be used.

    Args:
        hint: what the user can do, or the reason.
    """
    name, known = values.get("model_type", "bert"), ", ".join(ARCHITECTURES)
    return ValueError(f"unsupported encoder: `{path}` has model_type `{name}` (supported: {known}); {hint}")


def read_shape(directory: str | Path) -> EncoderConfig:
    """Read the config of a checkpoint's network.

    Raises:
        ValueError: as `read_config`, or names the file and the wrong key.
    """
    values = read_config(directory)
    try:
        return architecture_of(values, Path(directory) / CONFIG_FILE).read_config(values)
    except ValueError as error:
        raise ValueError(f"broken `{Path(directory) / CONFIG_FILE}`: {error}") from error


def labels_of(config_values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of a classifier in `config.json`, in the order of its logits.

    Raises:
        ValueError: if they are not strings or whole numbers, numbered from 0, or their number is wrong.
    """
    if not (id2label := config_values.get("id2label")):  # as transformers names them
        count = config_values.get("num_labels")
        count = 2 if count is None else count
        if type(count) is not int or not 1 <= count <= MAX_LABELS:
            raise ValueError(
                f"num_labels of {CONFIG_FILE} must be a whole number from 1 to {MAX_LABELS}: `{as_json(count)}`"
            )
        return tuple(f"LABEL_{number}" for number in range(count))
    by_number = id2label if isinstance(id2label, dict) else {}
    labels = [by_number.get(str(number)) for number in range(len(by_number))]
    if not labels or not all(type(label) in (str, int) for label in labels):
        raise ValueError(f"id2label of {CONFIG_FILE} must name a label for each number from 0: `{str(id2label)[:60]}`")
    return tuple(map(str, labels))


def label_values(labels: Sequence[str]) -> dict[str, Any]:
    """Return the values of `config.json` that name the labels of a classifier."""
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def create_model(
    task: str, config: EncoderConfig, *, num_labels: int | None = None, dropout: float | None = None
) -> BertModel:
    """Create a freshly initialised network for a task.

    Args:
        task: key of `MODELS`.
        num_labels: number of labels of classification and tagging; 2 if None.
        dropout: dropout of hidden states and attention; None for the config's own.
    """
    return _without_weights(task, config, num_labels, dropout).initialize()


def _without_weights(task: str, config: EncoderConfig, num_labels: int | None, dropout: float | None) -> BertModel:
    if dropout is not None:
        config = config.with_dropout(dropout)
    with torch.device("meta"):
        network: Callable[..., BertModel] = MODELS[task]
        return network(config, num_labels or 2) if MODELS[task].has_labels else network(config)


def load_model(
    directory: str | Path,
    task: str,
    *,
    num_labels: int | None = None,
    new_head: bool = False,
    without: tuple[str, ...] = (),
    dropout: float | None = None,
    config: EncoderConfig | None = None,
) -> BertModel:
    """Load the network of a task from a checkpoint.

    Args:
        task: key of `MODELS`.
        num_labels: number of labels of classification and tagging; None for the number in the checkpoint's config.
        new_head: True to initialise a head that the checkpoint lacks, for fine-tuning, instead of raising.
        without: prefixes of names; these weights are not read from the checkpoint.
        dropout: dropout of hidden states and attention; None for the checkpoint's own.
        config: shape of the network; None for the checkpoint's.

    Raises:
        ValueError: names what the checkpoint lacks, or a weight that is NaN or infinite.
    """
    values = read_config(directory)
    architecture = architecture_of(values, Path(directory) / CONFIG_FILE)
    if task == "masked-lm" and not architecture.ties_word_embeddings(values):
        raise ValueError(f"`{Path(directory) / CONFIG_FILE}` unties the word embeddings; masked-lm needs them tied")
    try:
        shape = config or architecture.read_config(values)
        known = len(labels_of(values)) if MODELS[task].has_labels and not num_labels else num_labels
        model = _without_weights(task, shape, known, dropout)
    except (TypeError, ValueError) as error:
        raise ValueError(f"broken `{Path(directory) / CONFIG_FILE}`: {error}") from error
    weights = _read_our_weights(directory, architecture, len(model.bert.layers), task)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    fitting = {
        name: weights[name]
        for name, shape in shapes.items()
        if name in weights and weights[name].shape == shape and not name.startswith(without)
    }
    optional = (*_HEADS, *model.bert.new_parts) if new_head else _UNUSED_HEADS.get(task, ())
    for name, shape in shapes.items():
        if name not in fitting and not name.startswith(optional):
            if name in weights:
                raise _shape_error(directory, task, name, weights[name], shape, num_labels, values)
            missing = architecture.file_name(name, len(model.bert.layers), task)
            hint = "fine-tune it for that first" if name.startswith(_HEADS) else "save all weights of the encoder again"
            if other := next((key for key in read_weights(directory) if key.endswith(f".{missing}")), ""):
                hint = f"it has `{other}`; save the weights without `{other.removesuffix(missing)}`"
            raise ValueError(f"checkpoint `{directory}` cannot do `{task}`: it lacks `{missing}`; {hint}")
    if broken := next((name for name, value in fitting.items() if not value.isfinite().all()), None):
        broken = architecture.file_name(broken, len(model.bert.layers), task)
        raise ValueError(f"checkpoint `{directory}` is broken: `{broken}` has NaN or infinite values; train it again")
    model.load_state_dict(fitting, strict=False, assign=True)
    return model.initialize()


def _read_our_weights(
    directory: str | Path, architecture: Architecture, num_layers: int, task: str
) -> dict[str, torch.Tensor]:
    """Read the weights of a checkpoint under our names."""
    weights = read_weights(directory)
    if adapter := next((name for name in weights if "lora_" in name or ".parametrizations." in name), ""):
        raise ValueError(
            f"checkpoint `{directory}` has `{adapter}`; merge such weights into the matrices and save again"
        )
    try:
        architecture.check_weights(weights, num_layers, task)
    except ValueError as error:
        raise ValueError(f"checkpoint `{directory}` {error}") from None
    return architecture.from_hugging_face(weights, num_layers, task)


class LabelCountError(ValueError):
    """The number of given labels differs from the number of the classifier's outputs."""


def _shape_error(
    directory: str | Path,
    task: str,
    name: str,
    weight: torch.Tensor,
    shape: torch.Size,
    num_labels: int | None,
    config: Mapping[str, Any],
) -> ValueError:
    """Return the error for a weight whose shape differs from the network's; of a classifier, it counts the labels."""
    misfit, num_outputs = f"checkpoint `{directory}` does not fit `{task}`: `{name}` is", len(weight)
    if not name.startswith("classifier.") or num_outputs == shape[0]:
        return ValueError(f"{misfit} {list(weight.shape)} where its config makes it {list(shape)}")
    has_labels = MODELS[task].has_labels
    if num_labels and has_labels:
        return LabelCountError(f"{misfit} of {num_outputs} labels, and {num_labels} are named")
    keys = [key for key in ("problem_type", "id2label", "num_labels") if config.get(key)]
    named = ", ".join(f"{key} `{str(config[key])[:60]}`" for key in keys) or "no id2label"
    if has_labels:
        return ValueError(f"{misfit} of {num_outputs} labels, and {CONFIG_FILE} has {named}")
    return ValueError(f"{misfit} of {num_outputs} outputs, and one is supported ({CONFIG_FILE}: {named})")


_HEADS = ("bert.pooler.", "mlm.", "nsp.", "classifier.", "qa_outputs.")
_UNUSED_HEADS = {"embedding": ("bert.pooler.",), "masked-lm": ("bert.pooler.", "nsp.")}
"""Parts that do not change a task's outputs, so that a checkpoint may lack them."""


def load_tokenizer(directory: str | Path, num_tokens: int | None = None) -> Tokenizer:
    """Load the tokenizer of a checkpoint; a SentencePiece model is converted.

    Args:
        num_tokens: number of tokens of the network; None for that of a family that this code computes.

    Raises:
        ValueError: if it is missing or broken, or has more tokens than the network.
    """
    num_tokens = num_tokens or read_shape(directory).vocab_size
    tokenizer = read_tokenizer(directory)
    if tokenizer.vocab_size > num_tokens:
        raise ValueError(
            f"the tokenizer of `{directory}` has {tokenizer.vocab_size} tokens, its network {num_tokens}; "
            "they do not belong together"
        )
    if not any((Path(directory) / name).is_file() for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE)):
        _note_capitals(directory, tokenizer)
    return tokenizer


MAX_CAPITALS = 0.01
"""Fraction of tokens with capitals above which a vocabulary counts as cased."""


def _note_capitals(directory: str | Path, tokenizer: Tokenizer) -> None:
    """Print a note if a vocabulary looks cased but is read in lower case, because no configuration states otherwise."""
    tokens = [token for token in tokenizer.backend.get_vocab() if not token.startswith("[")]
    num_capitals = sum(token != token.lower() for token in tokens)
    if tokenizer.lowercases and num_capitals > MAX_CAPITALS * len(tokens):
        _print_once(
            f"note: `{directory}` has no {TOKENIZER_CONFIG_FILE}, so all text is lower-cased, though {num_capitals:,} "
            f'of its tokens have capitals; if it is a cased model, write {{"do_lower_case": false}} there'
        )


@functools.cache
def _print_once(line: str) -> None:
    print(line, file=sys.stderr)
