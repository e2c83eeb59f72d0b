"""Checkpoints in Hugging Face's layout: any BERT there loads here, ours load there.

A checkpoint directory holds `config.json`, `model.safetensors`, `tokenizer.json`, `tokenizer_config.json` and
`vocab.txt`; ours also `task.json`, which says how the model treats text (see `TaskCard`), and a model card, README.md.
"""

from __future__ import annotations

import errno
import functools
import json
import pickle
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasks import settings_from_dict, settings_to_dict
from tasks.base import TaskSettings
from tasks.files import atomic_directory, sha256
from tasks.json_files import read_json
from tasks.tokenizer import Tokenizer
from tasks.tokenizer_files import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, TOKENIZER_FILES
from training.ablations.model import AblationConfig, change_config, make_config, without_combination
from training.model.encoder import EncoderConfig
from training.model.heads import (
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForSequenceRegression,
    BertForTokenClassification,
    BertModel,
)
from training.reports.model_card import CARD_FILE, model_card

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
TASK_FILE = "task.json"
ABLATION = "bert-ablation"
"""Model type of networks that are no BERT, but for what is left out or changed for comparison."""

MODELS: dict[str, type[BertModel]] = {
    "embedding": BertModel,
    "masked-lm": BertForPreTraining,
    "classification": BertForSequenceClassification,
    "spans": BertForQuestionAnswering,
    "regression": BertForSequenceRegression,
    "multiple-choice": BertForMultipleChoice,
    "tagging": BertForTokenClassification,
}
"""The network of each task."""
_LABELLED: dict[str, Callable[[EncoderConfig, int], BertModel]] = {
    "classification": BertForSequenceClassification,
    "tagging": BertForTokenClassification,
}
"""Those whose size depends on the number of labels."""


@dataclass(frozen=True, kw_only=True)
class TaskCard:
    """`task.json`: what the checkpoint was trained to do, how it treats text, and what it scored."""

    task: str
    settings: TaskSettings
    scores: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Recipe, data digests, checkpoint it started from, versions; `pretraining`, the same of that. Where a stage goes
    on from one of its kind, `before` is that one's record."""

    def to_json(self) -> str:
        """The text of `task.json`."""
        values = asdict(self) | {"settings": settings_to_dict(self.settings)}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def read_task_card(directory: str | Path) -> TaskCard | None:
    """The task card of a checkpoint; None where there is none (a foreign checkpoint).

    Raises:
        ValueError: naming the file and the key that is wrong.
    """
    path = Path(directory) / TASK_FILE
    if not path.is_file():
        return None
    values = read_json(path)
    try:
        settings = settings_from_dict(values["task"], values["settings"])
        card = TaskCard(**values | {"settings": settings})
        _check_records(values)
        return card
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"broken task card `{path}`: {error}") from error


_RECORDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        (
            *("scores", "provenance", "provenance.data", "provenance.recipe", "provenance.pretraining"),
            *("provenance.pretraining.recipe", "provenance.recipe.columns", "provenance.recipe.dev_columns"),
            *("provenance.before", "provenance.pretraining.before"),
        ),
        (lambda value: isinstance(value, dict), "an object"),
    ),
    **dict.fromkeys(
        ("provenance.recipe.dev", "provenance.recipe.train"),
        (lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value), "a list of strings"),
    ),
    **dict.fromkeys(
        ("provenance.recipe.checkpoint", "provenance.recipe.run_dir", "provenance.pretraining.recipe.run_dir"),
        (lambda value: isinstance(value, str), "a string"),
    ),
    **dict.fromkeys(
        ("provenance.machine", "provenance.pretraining.machine"),
        (lambda value: isinstance(value, dict) and {"cpu", "cores", "features"} <= value.keys(), "a machine's record"),
    ),
    "provenance.text_pairs": (lambda value: isinstance(value, bool), "true or false"),
}
"""What of a task card's records is read again, and what must be there if anything is."""


def _check_records(values: Mapping[str, Any]) -> None:
    for path, (fits, kind) in _RECORDS.items():
        *parents, last = path.split(".")
        record = functools.reduce(lambda found, key: found.get(key, {}), parents, values)
        if last in record and not fits(record[last]):
            raise ValueError(f"{path} must be {kind}: `{str(record[last])[:60]}`")


def read_config(directory: str | Path) -> dict[str, Any]:
    """`config.json` of a BERT checkpoint.

    Raises:
        ValueError: when it is missing, broken, or not of a BERT that this code computes.
    """
    path = Path(directory) / CONFIG_FILE
    if not path.is_file():
        inner = path.parent / "checkpoint"
        hint = f"; `{inner}` is one" if (inner / CONFIG_FILE).is_file() else ""
        hint = hint if path.parent.is_dir() else "; there is no such directory (models of a hub: download them first)"
        raise ValueError(f"not a checkpoint: `{directory}` has no {CONFIG_FILE}{hint}")
    values = read_json(path)
    if values.get("model_type", "bert") not in ("bert", ABLATION):
        raise ValueError(f"not a BERT checkpoint: `{path}` has model_type `{values['model_type']}`")
    if values.get("is_decoder") and "direction" not in values:
        raise ValueError(f"not an encoder: `{path}` says `is_decoder`")
    if values.get("position_embedding_type", "absolute") != "absolute":
        raise ValueError(f"`{path}`: only absolute position embeddings are supported")
    if values.get("quantization_config"):
        raise ValueError(f"`{path}` has a quantization_config; take the checkpoint that was quantized, in floats")
    return values


def bert_config(values: Mapping[str, Any]) -> EncoderConfig:
    """The shape of the network out of `config.json`.

    Raises:
        ValueError: naming the key that is wrong.
    """
    given = {item.name: values.get(item.name) for item in fields(AblationConfig)}
    if isinstance(given["state_layers"], list):
        given["state_layers"] = tuple(given["state_layers"])
    return make_config(**{name: value for name, value in given.items() if value is not None})


def read_shape(directory: str | Path) -> EncoderConfig:
    """The shape of a checkpoint's network.

    Raises:
        ValueError: as `read_config`, or naming the file and the key that is wrong.
    """
    values = read_config(directory)
    try:
        return bert_config(values)
    except ValueError as error:
        raise ValueError(f"broken `{Path(directory) / CONFIG_FILE}`: {error}") from error


def labels_of(config_values: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a classifier in the order of its logits, out of `config.json`.

    Raises:
        ValueError: when they are not numbered from 0 on, or are no strings.
    """
    id2label = config_values.get("id2label") or {"0": "LABEL_0", "1": "LABEL_1"}
    by_number = id2label if isinstance(id2label, dict) else {}
    labels = [by_number.get(str(number)) for number in range(len(by_number))]
    if not labels or not all(isinstance(label, str) for label in labels):
        raise ValueError(f"id2label of {CONFIG_FILE} must name a label for each number from 0: `{str(id2label)[:60]}`")
    return tuple(map(str, labels))


def create_model(
    task: str, config: EncoderConfig, *, num_labels: int | None = None, dropout: float | None = None
) -> BertModel:
    """A freshly initialised network for a task.

    Args:
        num_labels: for classification and tagging.
        dropout: of hidden states and attention; None for the config's own.
    """
    return _without_weights(task, config, num_labels, dropout).initialize()


def _without_weights(task: str, config: EncoderConfig, num_labels: int | None, dropout: float | None) -> BertModel:
    if dropout is not None:
        config = replace(config, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    if task == "masked-lm":  # predicts from the last layer, whatever the checkpoint's heads took
        config = without_combination(config)
    with torch.device("meta"):
        if task in _LABELLED:
            return _LABELLED[task](config, num_labels or 2)
        return MODELS[task](config)


def load_model(
    directory: str | Path,
    task: str,
    *,
    num_labels: int | None = None,
    new_head: bool = False,
    without: tuple[str, ...] = (),
    dropout: float | None = None,
    changes: Mapping[str, Any] | None = None,
) -> BertModel:
    """Load the network of a task from a checkpoint.

    Args:
        num_labels: for classification and tagging; None for as many as the checkpoint's config names.
        new_head: initialise a head that the checkpoint lacks (to fine-tune it) instead of refusing.
        without: what its names begin with is not taken from the checkpoint.
        dropout: of hidden states and attention; None for the checkpoint's own.
        changes: fields of the shape that are not to be as in the checkpoint.

    Raises:
        ValueError: naming what the checkpoint lacks, or what of it is no numbers.
    """
    values = read_config(directory)
    if task == "masked-lm" and not values.get("tie_word_embeddings", True):
        raise ValueError(f"`{Path(directory) / CONFIG_FILE}` unties the word embeddings; masked-lm needs them tied")
    try:
        config = change_config(bert_config(values), changes or {})
        model = _without_weights(task, config, num_labels or len(labels_of(values)), dropout)
    except (TypeError, ValueError) as error:
        raise ValueError(f"broken `{Path(directory) / CONFIG_FILE}`: {error}") from error
    weights, num_layers = read_weights(directory), len(model.bert.layers)
    if any(f".layer.{num_layers}." in f".{name}" for name in weights):
        raise ValueError(f"checkpoint `{directory}` has more layers than the {num_layers} of its {CONFIG_FILE}")
    weights = from_hugging_face(weights, num_layers)
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    fitting = {
        name: weights[name]
        for name, shape in wanted.items()
        if name in weights and weights[name].shape == shape and not name.startswith(without)
    }
    dispensable = _HEADS if new_head else _UNUSED_HEADS.get(task, ())
    for name in [name for name in wanted if name not in fitting]:
        if name.startswith(dispensable):
            continue
        if name in weights:
            shapes = f"{list(weights[name].shape)} where its config makes it {list(wanted[name])}"
            if name.startswith("classifier.") and len(weights[name]) != wanted[name][0]:
                shapes = _label_counts(task, len(weights[name]), num_labels, values)
            raise ValueError(f"checkpoint `{directory}` does not fit `{task}`: `{name}` is {shapes}")
        raise ValueError(f"checkpoint `{directory}` cannot do `{task}`: it lacks `{name}`; fine-tune it for that first")
    if broken := next((name for name, value in fitting.items() if not value.isfinite().all()), None):
        raise ValueError(
            f"checkpoint `{directory}` is broken: `{broken}` has values that are no numbers; train it again"
        )
    model.load_state_dict(fitting, strict=False, assign=True)
    return model.initialize()


def _label_counts(task: str, num_outputs: int, num_labels: int | None, config: Mapping[str, Any]) -> str:
    """How many outputs a classifier has, and how many its files speak of."""
    said = ", ".join(
        f"{key} `{str(config[key])[:60]}`" for key in ("problem_type", "id2label", "num_labels") if config.get(key)
    )
    if task in ("regression", "multiple-choice"):
        return f"of {num_outputs} outputs, and one is supported ({CONFIG_FILE}: {said or 'no id2label'})"
    if num_labels:
        return f"of {num_outputs} labels, and {num_labels} are named"
    return f"of {num_outputs} labels, and {CONFIG_FILE} has {said or 'no id2label'}"


_HEADS = ("bert.pooler.", "bert.states.", "mlm.", "nsp.", "classifier.", "qa_outputs.")
_UNUSED_HEADS = {"embedding": ("bert.pooler.",), "masked-lm": ("bert.pooler.", "nsp.")}
"""Parts that a task's outputs do not depend on, so that a checkpoint may lack them."""


def load_tokenizer(directory: str | Path) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Raises:
        ValueError: when it is missing or broken, or has tokens that the network lacks.
    """
    num_tokens = read_shape(directory).vocab_size
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > num_tokens:
        raise ValueError(
            f"the tokenizer of `{directory}` has {tokenizer.vocab_size} tokens, its network {num_tokens}; "
            "they do not belong together"
        )
    if not any((Path(directory) / name).is_file() for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE)):
        _note_capitals(directory, tokenizer)
    return tokenizer


MOST_CAPITALS = 0.01
"""Fraction of tokens with capitals above which a vocabulary is a cased one."""


def _note_capitals(directory: str | Path, tokenizer: Tokenizer) -> None:
    """Say that a vocabulary which looks cased is read in lower case, as nothing says otherwise."""
    tokens = [token for token in tokenizer.backend.get_vocab() if not token.startswith("[")]
    num_capitals = sum(token != token.lower() for token in tokens)
    if tokenizer.lowercases and num_capitals > MOST_CAPITALS * len(tokens):
        _say_once(
            f"note: `{directory}` has no {TOKENIZER_CONFIG_FILE}, so all text is lower-cased, though {num_capitals:,} "
            f'of its tokens have capitals; if it is a cased model, write {{"do_lower_case": false}} there'
        )


@functools.cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)


def read_weights(directory: str | Path) -> dict[str, Tensor]:
    """Weights of a checkpoint under Hugging Face's names, float32.

    Raises:
        ValueError: when there are none, or the file is broken or not plain tensors.
    """
    path = _weights_path(Path(directory))
    weights = _read_parts(path) if path.suffix == ".json" else _read_file(path)
    floats = {name: value for name, value in weights.items() if value.is_floating_point()}
    if narrow := next((name for name, value in floats.items() if value.dtype.itemsize < 2), None):
        raise ValueError(
            f"cannot read weights `{path}`: `{narrow}` is quantized; take the checkpoint in 16 bits or more"
        )
    return {name: value.float() for name, value in floats.items()}


def _read_parts(path: Path) -> dict[str, Tensor]:
    """Read weights that are divided into several files.

    Args:
        path: the index, which names the file of each tensor.
    """
    files = read_json(path).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ValueError(f"broken `{path}`: expected `weight_map`, the file of each tensor by its name")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(files.values())):
        part = path.parent / name
        if Path(name).name != name or not part.is_file():
            raise ValueError(f"`{path}` names `{name}`, which is no file beside it; copy all parts of the checkpoint")
        weights |= {key: value for key, value in _read_file(part).items() if files.get(key) == name}
    if missing := sorted(files.keys() - weights.keys()):
        raise ValueError(f"`{path}` names `{missing[0]}`, which `{files[missing[0]]}` lacks; copy the checkpoint again")
    return weights


def _read_file(path: Path) -> Mapping[str, Tensor]:
    try:
        weights = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # safetensors and pickle raise errors of many kinds
        reason = str(error).splitlines()[0]
        if isinstance(error, pickle.UnpicklingError):
            reason = f"it holds more than plain tensors, which could run code; save them as {WEIGHTS_FILE}"
        raise ValueError(f"cannot read weights `{path}`: {reason}") from error
    if not isinstance(weights, Mapping) or not all(map(_is_weight, weights, weights.values())):
        raise ValueError(
            f"cannot read weights `{path}`: expected tensors by name (a state dictionary), none of them sparse or meta"
        )
    return weights


def _is_weight(name: object, value: object) -> bool:
    """Not so of sparse tensors, nor of those that are no more than a shape."""
    return isinstance(name, str) and isinstance(value, Tensor) and not value.is_meta and value.layout == torch.strided


def has_weights(directory: Path) -> bool:
    """Whether a checkpoint is there with its weights."""
    return any((directory / name).is_file() for name in _WEIGHTS_FILES)


_WEIGHTS_FILES = (
    WEIGHTS_FILE,
    f"{WEIGHTS_FILE}.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
"""Each alone holds the weights, or names the files that do; the first that is there is read."""


def _weights_path(directory: Path) -> Path:
    for name in _WEIGHTS_FILES:
        if (directory / name).is_file():
            return directory / name
    raise ValueError(f"no weights in `{directory}`: expected `{WEIGHTS_FILE}` or `pytorch_model.bin`")


def save_checkpoint(
    directory: str | Path, model: BertModel, *, tokenizer_from: str | Path, card: TaskCard, overwrite: bool = False
) -> None:
    """Write a checkpoint directory, atomically, with weights as they are: of a `model.half()` in 16 bits.

    Args:
        tokenizer_from: directory whose tokenizer files are copied.
        overwrite: put it in the place of what is there.

    Raises:
        ValueError: when the directory exists and `overwrite` is off.
    """
    directory = Path(directory)
    with atomic_directory(directory, replace=overwrite) as temporary:
        write_checkpoint(temporary, model, tokenizer_from=tokenizer_from, card=card)


def write_checkpoint(directory: Path, model: BertModel, *, tokenizer_from: str | Path, card: TaskCard) -> None:
    """Write the files of a checkpoint into an existing directory."""
    labels = getattr(card.settings, "labels", ())
    config = {"architectures": [model.architecture], "model_type": "bert", **asdict(model.config)}
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config |= {"position_embedding_type": "absolute", "torch_dtype": dtype}
    if isinstance(model.config, AblationConfig):  # transformers would compute something else: it must not load it
        config["model_type"] = ABLATION
    if isinstance(model, BertForSequenceRegression):
        config["problem_type"] = "regression"
        labels = ("LABEL_0",)  # transformers counts these
    if labels:
        config["id2label"] = {str(index): label for index, label in enumerate(labels)}
        config["label2id"] = {label: index for index, label in enumerate(labels)}
    (directory / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    _save_weights(to_hugging_face(model.state_dict()), directory / WEIGHTS_FILE)
    for name in TOKENIZER_FILES:
        if (Path(tokenizer_from) / name).is_file():
            shutil.copyfile(Path(tokenizer_from) / name, directory / name)
    (directory / TASK_FILE).write_text(card.to_json(), encoding="utf-8")
    text = model_card(card, config, num_parameters=sum(parameter.numel() for parameter in model.parameters()))
    (directory / CARD_FILE).write_text(text, encoding="utf-8")


def _save_weights(weights: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(weights, path, metadata={"format": "pt"})
    except SafetensorError as error:  # the file system's own, in words
        raise OSError(errno.EIO, str(error).rpartition("I/O error: ")[2], str(path)) from error


def checkpoint_digest(directory: str | Path) -> str:
    """SHA-256 of the weights, hexadecimal.

    Raises:
        ValueError: when there are none.
    """
    return sha256(_weights_path(Path(directory)))


_LAYER = "bert.encoder.layer."
_NAMES = {
    "bert.embeddings.word": "bert.embeddings.word_embeddings",
    "bert.embeddings.position": "bert.embeddings.position_embeddings",
    "bert.embeddings.token_type": "bert.embeddings.token_type_embeddings",
    "bert.embeddings.norm": "bert.embeddings.LayerNorm",
    "bert.pooler": "bert.pooler.dense",
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
    "nsp": "cls.seq_relationship",
}
"""Our names -> Hugging Face's, outside of the layers; the names of the other heads are the same."""
_LAYER_NAMES = {
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}


def to_hugging_face(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights under Hugging Face's names; query, key and value split."""
    renamed: dict[str, Tensor] = {}
    for name, value in weights.items():
        if match := re.fullmatch(r"bert\.layers\.(\d+)\.(\w+)\.(\w+)", name):
            number, module, kind = match.groups()
            if module == "qkv":
                for part, piece in zip(("query", "key", "value"), value.chunk(3), strict=True):
                    renamed[f"{_LAYER}{number}.attention.self.{part}.{kind}"] = piece.contiguous()
            else:
                renamed[f"{_LAYER}{number}.{_LAYER_NAMES[module]}.{kind}"] = value.contiguous()
        else:
            prefix = next((item for item in _NAMES if name == item or name.startswith(item + ".")), "")
            renamed[_NAMES.get(prefix, prefix) + name[len(prefix) :]] = value.contiguous()
    return renamed


def from_hugging_face(weights: Mapping[str, Tensor], num_layers: int) -> dict[str, Tensor]:
    """Weights under our names; query, key and value joined. Reads checkpoints without the `bert.` prefix, too."""
    named = {_modern_name(name): value for name, value in weights.items()}
    back = {theirs: ours for ours, theirs in _NAMES.items()}
    renamed = {}
    for name, value in named.items():
        prefix = next((item for item in back if name == item or name.startswith(item + ".")), "")
        renamed[back.get(prefix, prefix) + name[len(prefix) :]] = value
    for number in range(num_layers):
        source, target = f"{_LAYER}{number}.", f"bert.layers.{number}."
        for kind in ("weight", "bias"):
            parts = [named.get(f"{source}attention.self.{part}.{kind}") for part in ("query", "key", "value")]
            if all(part is not None for part in parts):
                renamed[f"{target}qkv.{kind}"] = torch.cat([part for part in parts if part is not None])
            for ours, theirs in _LAYER_NAMES.items():
                if f"{source}{theirs}.{kind}" in named:
                    renamed[f"{target}{ours}.{kind}"] = named[f"{source}{theirs}.{kind}"]
    return renamed


def _modern_name(name: str) -> str:
    """Old TensorFlow names of LayerNorm, and the prefix that bare encoders lack."""
    name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
    return f"bert.{name}" if name.startswith(("embeddings.", "encoder.", "pooler.")) else name
