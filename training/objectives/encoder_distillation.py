"""Distillation of a pretrained encoder: the student learns what its teacher makes of masked text.

In addition to the masked tokens it learns the teacher's probabilities for them (DistilBERT, Sanh et al. 2019) and the
relations between the tokens in an attention layer (MiniLMv2, Wang et al. 2021, arXiv 2012.15828). Both read the same
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.checkpoint.reader import load_model
from training.data.pretraining import PretrainingExample
from training.data.pretraining_batches import IGNORED
from training.loop.types import Batch
from training.model.heads import BertForPreTraining, BertModel
from training.objectives.base import Targets
from training.objectives.masked_lm import MaskedLM, add_next_sentences, cross_entropy


class EncoderDistillation(MaskedLM):
    """Masked LM, and the outputs of a teacher with the same tokenizer.

    Args:
        token_weight: weight of the teacher's probabilities of masked tokens, relative to the tokens themselves.
        relation_heads: number of parts into which queries, keys and values are split for relations.
        teacher_layer: layer of the teacher whose relations are learned, from 0; negative ones count from the end.
    """

    def __init__(
        self,
        teacher: Path,
        *,
        token_weight: float,
        relation_weight: float,
        relation_heads: int,
        teacher_layer: int,
        next_sentences: bool,
    ) -> None:
        super().__init__(next_sentences=next_sentences)
        self.teacher_path = teacher
        self.relation_heads = relation_heads
        self.teacher_layer = teacher_layer
        wanted = {"teacher_mlm": token_weight, "relations": relation_weight}
        self.weights = {name: weight for name, weight in wanted.items() if weight}

    def network(self, model: BertForPreTraining) -> BertForPreTraining:
        """Load the teacher, and watch the layers of both that are compared.

        Raises:
            ValueError: if teacher and student cannot be compared.
        """
        self.teacher = load_model(
            self.teacher_path, "masked-lm", new_head="teacher_mlm" not in self.weights, dropout=0.0
        )
        self.teacher.requires_grad_(False).eval()
        count = self.teacher.config.num_hidden_layers
        if not -count <= self.teacher_layer < count:
            raise ValueError(f"--teacher-layer `{self.teacher_layer}`: `{self.teacher_path}` has {count} layers")
        for name, config in (("student", model.config), (f"teacher `{self.teacher_path}`", self.teacher.config)):
            if "relations" in self.weights and config.hidden_size % self.relation_heads:
                raise ValueError(
                    f"--relation-heads `{self.relation_heads}` does not divide the hidden size {config.hidden_size} of "
                    f"the {name}"
                )
        self._own, self._theirs = _WatchedLayer(model, -1), _WatchedLayer(self.teacher, self.teacher_layer)
        if "relations" in self.weights:
            model.bert.unpackable = "relations between tokens are compared with those of a teacher"
        return model

    def result(self, network: BertForPreTraining) -> BertForPreTraining:
        self._own.hook.remove()
        return network

    def targets(self, examples: Sequence[PretrainingExample]) -> Targets:
        targets, counts = super().targets(examples)
        own = {"teacher_mlm": counts["mlm"], "relations": sum(len(example.input_ids) for example in examples)}
        return targets, counts | {name: count for name, count in own.items() if name in self.weights}

    def losses(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            theirs = self.teacher.to(batch.inputs["input_ids"].device)(**batch.inputs)
        outputs = network(**batch.inputs)
        losses = {"mlm": cross_entropy(outputs["logits"], batch)}
        if "teacher_mlm" in self.weights:
            losses["teacher_mlm"] = _divergence(outputs["logits"], theirs["logits"], batch.targets["mlm"] != IGNORED)
        if "relations" in self.weights:
            is_token = batch.inputs["attention_mask"].bool()
            losses["relations"] = relation_loss(self._own.qkv, self._theirs.qkv, is_token, self.relation_heads)
        return add_next_sentences(losses, outputs, batch)


class _WatchedLayer:
    """Queries, keys and values that a layer of a network computed last."""

    qkv: Tensor
    """[B, L, 3 D]"""

    def __init__(self, model: BertModel, layer: int) -> None:
        layers = model.bert.layers
        watched: Any = layers[layer if len(layers) > 1 else 0]  # a single one if all share their weights
        self.hook = watched.qkv.register_forward_hook(lambda module, inputs, output: setattr(self, "qkv", output))


def _divergence(logits: Tensor, targets: Tensor, known: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence from targets at the known positions, summed.

    Args:
        logits: [positions, vocabulary] of the student.
        targets: the same of the teacher.
        known: [positions] bool.
    """
    student, teacher = F.log_softmax(logits.float(), -1), F.log_softmax(targets.float(), -1)
    return ((teacher.exp() * (teacher - student)).sum(-1) * known).sum()


def relation_loss(student: Tensor, teacher: Tensor, is_token: Tensor, num_heads: int) -> Tensor:
    """Return the divergence of the relations of tokens, summed over tokens and over queries, keys and values.

    The relation of a token is the softmax of its scaled products with all tokens. The divergence is the mean over the
    heads.

    Args:
        student: queries, keys and values, [B, L, 3 D].
        teacher: the same with another D.
        is_token: [B, L] bool; False for padding.
        num_heads: number of parts into which each of the three is split.

    Source: MiniLMv2, section 3.1.
    """
    is_key = is_token[:, None, None, :]

    def relations_of(states: Tensor) -> Tensor:
        """Return the logarithms of the relations of all tokens, [B, H, L, L]."""
        x = states.unflatten(-1, (num_heads, -1)).transpose(1, 2)
        products = x @ x.transpose(-1, -2) / math.sqrt(x.shape[-1])
        return products.masked_fill(~is_key, torch.finfo(products.dtype).min).log_softmax(-1)

    total = student.new_zeros((), dtype=torch.float32)
    for own, theirs in zip(student.float().chunk(3, -1), teacher.float().chunk(3, -1), strict=True):
        relations, targets = relations_of(own), relations_of(theirs)
        products = targets.exp() * (targets - relations)  # 0 at padding
        total = total + (products.masked_fill(~is_key, 0.0).sum(-1) * is_token[:, None]).sum()
    return total / num_heads
