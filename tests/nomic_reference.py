"""Nomic BERT in plain PyTorch: one unpadded text at a time, head by head, rotated by products of complex numbers.

The reference that other families have in transformers, whose version here lacks this one. Semantics are those of the
model's own code on the Hugging Face hub; where transformers 5 has the same class, both were compared by hand.
"""

import json
import math
from types import SimpleNamespace

import safetensors.torch
import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput, QuestionAnsweringModelOutput
from transformers.modeling_outputs import SequenceClassifierOutput as ClassifierOutput

from training.model.heads import MODELS

ACTIVATIONS = {"swiglu": F.silu, "geglu": F.gelu, "silu": F.silu, "gelu": F.gelu}


class Shape:
    """Config values under the keys of the hub (GPT-2's) or of transformers 5."""

    def __init__(self, values):
        def get(*keys, default=None):
            return next((values[key] for key in keys if values.get(key) is not None), default)

        self.is_of_hub = "n_embd" in values
        self.size = get("hidden_size", "n_embd")
        self.inner = get("intermediate_size") or 256 * math.ceil(get("n_inner") / 256)
        self.num_layers = get("num_hidden_layers", "n_layer")
        self.num_heads = get("num_attention_heads", "n_head")
        self.eps = get("layer_norm_eps", "layer_norm_epsilon", default=1e-12)
        self.activation = ACTIVATIONS[get("hidden_act", "activation_function", default="silu")]
        self.num_types = get("type_vocab_size", default=2)
        multiple = get("pad_vocab_size_multiple", default=1)
        self.num_words = multiple * math.ceil(get("vocab_size") / multiple)
        rotary = get("rope_parameters", default={})
        self.theta = rotary.get("rope_theta") or get("rotary_emb_base", default=1000.0)
        self.factor = rotary.get("factor") or get("rotary_scaling_factor")
        self.num_trained = get("max_trained_positions", default=2048)
        self.attention_bias = get("qkv_proj_bias", default=self.is_of_hub)
        self.mlp_bias = get("mlp_fc1_bias", default=self.is_of_hub)
        self.has_mlm_bias = self.mlp_bias or not self.is_of_hub

    def norm(self):
        return nn.LayerNorm(self.size, eps=self.eps)


class Layer(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.shape = shape
        self.attn = nn.ModuleDict(
            {
                "Wqkv": nn.Linear(shape.size, 3 * shape.size, bias=shape.attention_bias),
                "out_proj": nn.Linear(shape.size, shape.size, bias=shape.attention_bias),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "fc11": nn.Linear(shape.size, shape.inner, bias=shape.mlp_bias),
                "fc12": nn.Linear(shape.size, shape.inner, bias=shape.mlp_bias),
                "fc2": nn.Linear(shape.inner, shape.size, bias=shape.mlp_bias),
            }
        )
        self.norm1, self.norm2 = shape.norm(), shape.norm()

    def forward(self, x):
        x = self.norm1(x + self.attn["out_proj"](self.attend(x)))
        gated = self.mlp["fc11"](x) * self.shape.activation(self.mlp["fc12"](x))
        return self.norm2(x + self.mlp["fc2"](gated))

    def attend(self, x):
        queries, keys, values = self.attn["Wqkv"](x).chunk(3, dim=-1)
        head_size = self.shape.size // self.shape.num_heads
        parts = []
        for start in range(0, self.shape.size, head_size):
            query, key, value = (part[:, start : start + head_size] for part in (queries, keys, values))
            scores = self.rotate(query) @ self.rotate(key).T / math.sqrt(head_size)
            parts.append(scores.softmax(-1) @ value)
        return torch.cat(parts, dim=-1)

    def rotate(self, x):
        length, size = x.shape
        theta = self.shape.theta
        if self.shape.factor and length > self.shape.num_trained:
            growth = self.shape.factor * length / self.shape.num_trained - (self.shape.factor - 1)
            theta = theta * growth ** (size / (size - 2))
        pairs = torch.arange(size // 2, dtype=torch.float64)
        angles = torch.arange(length)[:, None] * theta ** (-2 * pairs / size)
        turned = torch.complex(x[:, : size // 2], x[:, size // 2 :]) * torch.polar(torch.ones(()), angles.float())
        return torch.cat([turned.real, turned.imag], dim=-1)


class NomicReference(nn.Module):
    """Network of a task; weights are named as in files."""

    def __init__(self, values, task):
        super().__init__()
        self.shape, self.values, self.task = Shape(values), values, task
        labels = {int(number): label for number, label in values.get("id2label", {}).items()}
        self.config = SimpleNamespace(model_type="nomic_bert", id2label=labels)
        shape = self.shape
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(shape.num_words, shape.size),
                "token_type_embeddings": nn.Embedding(shape.num_types, shape.size),
            }
        )
        self.emb_ln = shape.norm()
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))})
        if task in ("classification", "regression", "multiple-choice"):
            self.pooler = nn.ModuleDict({"dense": nn.Linear(shape.size, shape.size)})
        if task == "masked-lm":
            transform = {
                "dense": nn.Linear(shape.size, shape.size, bias=shape.has_mlm_bias),
                "layer_norm": shape.norm(),
            }
            decoder = nn.Linear(shape.size, shape.num_words, bias=shape.has_mlm_bias)
            decoder.weight = self.embeddings["word_embeddings"].weight
            self.cls = nn.ModuleDict(
                {"predictions": nn.ModuleDict({"transform": nn.ModuleDict(transform), "decoder": decoder})}
            )
        num_outputs = len(labels) or values.get("num_labels", 1)
        if task in ("classification", "regression", "multiple-choice", "tagging"):
            self.classifier = nn.Linear(shape.size, 1 if task == "multiple-choice" else num_outputs)
        if task == "spans":
            self.qa_outputs = nn.Linear(shape.size, 2)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        rows = [tensor.reshape(-1, input_ids.shape[-1]) for tensor in (input_ids, mask, types)]
        hidden = torch.stack([self.encode(*row) for row in zip(*rows, strict=True)])
        if self.task in ("classification", "regression", "multiple-choice"):
            logits = self.classifier(torch.tanh(self.pooler["dense"](hidden[:, 0])))
            shape = input_ids.shape[:-1] if self.task == "multiple-choice" else logits.shape
            return ClassifierOutput(logits=logits.view(shape))
        if self.task == "tagging":
            return ClassifierOutput(logits=self.classifier(hidden))
        if self.task == "spans":
            start, end = self.qa_outputs(hidden).unbind(-1)
            return QuestionAnsweringModelOutput(start_logits=start, end_logits=end)
        if self.task == "masked-lm":
            head = self.cls["predictions"]
            states = self.shape.activation(head["transform"]["dense"](hidden))
            return MaskedLMOutput(logits=head["decoder"](head["transform"]["layer_norm"](states)))
        return BaseModelOutput(last_hidden_state=hidden)

    def encode(self, ids, mask, types):
        """Return the hidden states of one text, zero at the padding behind it."""
        ids, types = ids[: mask.sum()], types[: mask.sum()]
        x = self.embeddings["word_embeddings"](ids) + self.embeddings["token_type_embeddings"](types)
        x = self.emb_ln(x)
        for layer in self.encoder["layers"]:
            x = layer(x)
        return F.pad(x, (0, 0, 0, len(mask) - len(x)))

    def save_pretrained(self, directory):
        """Write the files as the hub's code does (prefix `bert.`, or none), or as transformers 5 does."""
        directory.mkdir(exist_ok=True)
        prefix = "bert." if self.shape.is_of_hub else "nomic_bert."
        prefix = "" if self.task == "embedding" else prefix
        weights = {
            name if name.startswith(("cls.", "classifier.", "qa_outputs.")) else prefix + name: value.detach().clone()
            for name, value in self.state_dict().items()
        }
        if not self.shape.is_of_hub and self.task == "masked-lm":  # tied weights are written once
            weights.pop("cls.predictions.decoder.weight")
            weights["cls.predictions.bias"] = weights.pop("cls.predictions.decoder.bias")
        safetensors.torch.save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        values = {"model_type": "nomic_bert", **self.values}
        if count := values.pop("num_labels", None):
            values["id2label"] = {number: f"LABEL_{number}" for number in range(count)}
        (directory / "config.json").write_text(json.dumps(values), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, directory, output_loading_info=False):
        """Read files that have the keys of transformers 5."""
        values = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        name = values["architectures"][0].removeprefix("NomicBert")
        by_name = {class_name(network): task for task, network in reversed(MODELS.items())}
        task = "regression" if values.get("problem_type") == "regression" else by_name[name]
        model = cls(values, task)
        weights = {
            name.removeprefix("nomic_bert."): value
            for name, value in safetensors.torch.load_file(directory / "model.safetensors").items()
        }
        if task == "masked-lm":
            weights["cls.predictions.decoder.weight"] = weights["embeddings.word_embeddings.weight"]
            weights["cls.predictions.decoder.bias"] = weights.pop("cls.predictions.bias")
        missing, unexpected = model.load_state_dict(weights, strict=False)
        report = {"missing_keys": missing, "unexpected_keys": unexpected}
        return (model, report) if output_loading_info else model


def class_name(network):
    """Return the end of a class name in transformers."""
    return network.architecture.removeprefix("Bert").replace("ForPreTraining", "ForMaskedLM")
