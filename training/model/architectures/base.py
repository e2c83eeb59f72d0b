"""Translation of a family's config and weight names between Hugging Face's and ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from tasks.schema import FieldError
from training.model.config import EncoderConfig

BERT_LAYER = {
    "qkv": ("attention.self.query", "attention.self.key", "attention.self.value"),
    "attention_output": ("attention.output.dense",),
    "attention_norm": ("attention.output.LayerNorm",),
    "intermediate": ("intermediate.dense",),
    "output": ("output.dense",),
    "output_norm": ("output.LayerNorm",),
}
"""Modules of a layer in BERT and in families that took its code: ours -> Hugging Face's."""
BERT_EMBEDDINGS = {
    "bert.embeddings.word": "embeddings.word_embeddings",
    "bert.embeddings.position": "embeddings.position_embeddings",
    "bert.embeddings.token_type": "embeddings.token_type_embeddings",
    "bert.embeddings.norm": "embeddings.LayerNorm",
}
"""Modules of the embeddings in BERT and in families that took its code: ours -> Hugging Face's, without prefix."""
BERT_HEADS = {
    "mlm.dense": "cls.predictions.transform.dense",
    "mlm.norm": "cls.predictions.transform.LayerNorm",
    "mlm.bias": "cls.predictions.bias",
}
"""Head of masked LM in BERT and in families that took its code: ours -> Hugging Face's."""
DENSE_CLASSIFIER = {"bert.pooler": "classifier.dense", "classifier": "classifier.out_proj"}
"""Head of classification in RoBERTa and others: the layer that is BERT's pooler belongs to the classifier."""
_OUTPUTS = {"classifier": "classifier", "qa_outputs": "qa_outputs"}
"""Output layers, named alike in almost all families."""
_OPTIONAL_HEADS = ("nsp.", "bert.pooler.")
"""Starts of the names of heads that some families do not have."""
_OPTIONS = {
    "embedding_size": 0,
    "skips_padding_positions": False,
    "relative_attention_num_buckets": 0,
    "pooler_act": "tanh",
    "prediction_act": "",
    "shares_layers": False,
}
"""Fields that BERT does not have, and their values in BERT."""


def shown(value: Any) -> str:
    """Return a value of `config.json` for a message."""
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def roberta_heads(prefix: str) -> dict[str, str]:
    """Return the modules of the heads in RoBERTa, and in families that took them over with another prefix."""
    names = {"mlm.dense": "lm_head.dense", "mlm.norm": "lm_head.layer_norm", "mlm.bias": "lm_head.bias"}
    return {"bert.pooler": f"{prefix}pooler.dense", **names}


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Config keys and weight names of one family of encoders in Hugging Face's layout."""

    model_type: str
    """`model_type` in `config.json`."""
    class_prefix: str
    """Start of its class names in transformers: `Roberta` of `RobertaForMaskedLM`."""
    prefix: str
    """Start of the encoder's weight names: `roberta.`."""
    config_type: type[EncoderConfig] = EncoderConfig
    """Type of the configs of its networks."""
    config_keys: Mapping[str, str] = field(default_factory=dict)
    """Fields of `EncoderConfig` that have another key in `config.json`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields without a key in `config.json`, where they differ from BERT's."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are the same in all networks of the family, regardless of `config.json`."""
    supported: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Keys of `config.json` that change the network -> values that this code computes."""
    encoder: Mapping[str, str]
    """Modules of the encoder outside its layers: ours -> theirs, without `prefix`."""
    layers: str
    """Start of the names of the layers, without `prefix`, before their number."""
    layer: Mapping[str, Sequence[str]] = field(default_factory=lambda: BERT_LAYER)
    """Modules of a layer; query, key and value are one module here."""
    heads: Mapping[str, str]
    """Modules of the heads: ours -> theirs. Output layers have their names here unless they are named."""
    task_heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Modules of heads that have other names in some tasks."""
    bare_prefixes: Sequence[str] = ("embeddings.", "encoder.", "pooler.")
    """Starts of weight names in checkpoints of the encoder without a head, which lack `prefix`."""

    def read_config(self, values: Mapping[str, Any]) -> EncoderConfig:
        """Return the config of the network that `config.json` describes.

        Raises:
            ValueError: naming the key whose value is wrong or not supported.
        """
        try:
            return self._read(values)
        except FieldError as error:
            raise ValueError(error.message(lambda name: self.key_of(name, values))) from None

    def key_of(self, name: str, values: Mapping[str, Any]) -> str:
        """Return the key in `config.json` for a field of `EncoderConfig`.

        Args:
            values: values of `config.json`, which may have one of several keys.
        """
        return self.config_keys.get(name, name)

    def _read(self, values: Mapping[str, Any]) -> EncoderConfig:
        for key, allowed in self.supported.items():
            if key in values and values[key] not in allowed:
                raise ValueError(f"{key} {shown(values[key])} is not supported (only {', '.join(map(shown, allowed))})")
        given = {item.name: values.get(self.config_keys.get(item.name, item.name)) for item in fields(self.config_type)}
        is_read = {name: name not in _OPTIONS or name in self.defaults for name in given}
        known = {name: value for name, value in given.items() if value is not None and is_read[name]}
        config = self.config_type(**{**self.defaults, **known, **self.fixed, "model_type": self.model_type})
        if config.shares_layers and config.width_of_embeddings == config.hidden_size:
            raise ValueError(f"embedding_size `{config.embedding_size}` equals hidden_size, which is not supported")
        return config

    def write_config(self, config: EncoderConfig) -> dict[str, Any]:
        """Return the values of `config.json` that describe a network."""
        values = {item.name: getattr(config, item.name) for item in fields(config) if item.name not in self.fixed}
        return {
            self.config_keys.get(name, name): value
            for name, value in values.items()
            if name not in _OPTIONS or value != _OPTIONS[name]
        }

    def for_config(self, values: Mapping[str, Any]) -> Architecture:
        """Return the architecture with the weight names that a config asks for.

        Args:
            values: values of `config.json`, or fields of an `EncoderConfig`.
        """
        return self

    def ties_word_embeddings(self, values: Mapping[str, Any]) -> bool:
        """Return whether the output layer of masked LM is the word embeddings, by the values of `config.json`."""
        return bool(values.get("tie_word_embeddings", True))

    def class_name(self, architecture: str) -> str:
        """Return the name of a class in transformers.

        Args:
            architecture: `architecture` of a class in `training.model.heads`.
        """
        if self.class_prefix == "Bert":
            return architecture
        return self.class_prefix + architecture.removeprefix("Bert").replace("ForPreTraining", "ForMaskedLM")

    def from_hugging_face(self, weights: Mapping[str, Tensor], num_layers: int, task: str = "") -> dict[str, Tensor]:
        """Return the weights under our names, with query, key and value joined.

        Args:
            weights: named as by Hugging Face, with or without `prefix`.
            num_layers: layers of the network.
            task: task whose heads are read, as their names depend on it in some families.
        """
        named = {self._full_name(name): value for name, value in weights.items()}
        renamed = dict[str, Tensor]()
        for ours, theirs in self._names(num_layers, task):
            if all(name in named for name in theirs):
                parts = [named[name] for name in theirs]
                renamed[ours] = parts[0] if len(parts) == 1 else torch.cat(parts)
        return renamed

    def file_name(self, weight: str, num_layers: int, task: str) -> str:
        """Return Hugging Face's name of one of our weights; of the query for `qkv`."""
        return dict(self._names(num_layers, task)).get(weight, (weight,))[0]

    def check_weights(self, weights: Mapping[str, Tensor], num_layers: int, task: str) -> None:
        """Check that the network has each weight of the encoder, and that no weight has two values.

        Poolers are allowed, since tasks that do not pool leave them unread. Files may name a weight with and without
        `prefix`, and the bias of masked LM also as that of the decoder.

        Raises:
            ValueError: naming the weights, in words that follow the name of a checkpoint.
        """
        known = {name for _, names in self._names(num_layers, task) for name in names}
        bias = self._heads(task)["mlm.bias"] if task == "masked-lm" else ""
        first = dict[str, str]()
        for name, value in weights.items():
            full = self._full_name(name)
            is_ours = full.startswith(self.prefix) and not full.startswith(f"{self.prefix}pooler.")
            if is_ours and full not in known:
                raise ValueError(f"has `{name}`, which is not part of a `{self.model_type}` with its config.json")
            full = bias if bias and full == f"{bias.removesuffix('bias')}decoder.bias" else full
            other = first.setdefault(full, name)
            if other != name and not torch.equal(weights[other], value):
                raise ValueError(
                    f"has `{other}` and `{name}`, which are one weight with two values; save it without the wrong one"
                )

    def to_hugging_face(self, weights: Mapping[str, Tensor], task: str = "") -> dict[str, Tensor]:
        """Return the weights under Hugging Face's names, with query, key and value split.

        Heads that the family does not have, as that of next sentences in all but BERT, are left out.
        """
        numbers = {int(name.split(".")[2]) for name in weights if name.startswith("bert.layers.")}
        names = dict(self._names(len(numbers), task))
        renamed = dict[str, Tensor]()
        for ours, value in weights.items():
            if ours not in names and ours.startswith(_OPTIONAL_HEADS):
                continue
            theirs = names.get(ours, (ours,))
            parts = value.chunk(len(theirs)) if len(theirs) > 1 else (value,)
            renamed |= {name: part.contiguous() for name, part in zip(theirs, parts, strict=True)}
        return renamed

    def _names(self, num_layers: int, task: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield our name of each weight that the family can have, and Hugging Face's; three for `qkv`."""
        modules = dict[str, tuple[str, ...]]()
        modules |= {ours: (f"{self.prefix}{theirs}",) for ours, theirs in self.encoder.items()}
        modules |= {ours: (theirs,) for ours, theirs in {**_OUTPUTS, **self._heads(task)}.items()}
        for number in range(num_layers):
            start = f"{self.prefix}{self.layers}{number}."
            for ours, theirs in self.layer.items():
                modules[f"bert.layers.{number}.{ours}"] = tuple(start + name for name in theirs)
        for ours, theirs in modules.items():
            for kind in [""] if ours == "mlm.bias" else [".weight", ".bias"]:
                yield f"{ours}{kind}", tuple(f"{name}{kind}" for name in theirs)

    def _heads(self, task: str) -> dict[str, str]:
        return {**self.heads, **self.task_heads.get(task, {})}

    def _full_name(self, name: str) -> str:
        """Replace TensorFlow's names of LayerNorm parameters; add the prefix that bare encoders lack."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        return f"{self.prefix}{name}" if name.startswith(tuple(self.bare_prefixes)) else name
