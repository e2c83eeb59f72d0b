"""Spans: the answer to a question as a span of a text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.spans import SpanExample, SpanSettings, Window
from tasks.text.joined_words import word_around
from training.data.squad import counted_in, is_at, read_questions, read_spans
from training.loop.types import Batch
from training.objectives.base import IGNORED, Baseline, LabelledFeatures, TaskObjective, TaskOptions
from training.objectives.baselines import first_words, no_answer


class SpanObjective(TaskObjective):
    """Mean of the cross entropies of the answer's first and last token."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"first words": first_words, "always no answer": no_answer}
    table_columns = (("question", "context", "answers"),)
    read = staticmethod(read_spans)
    read_unlabelled = staticmethod(read_questions)
    default_max_seq_length = 384
    unusable_reason = "no answer is at its answer_start"

    def settings(self, options: TaskOptions, examples: Sequence[Any]) -> TaskSettings:
        unanswerable = any(not example.answers for example in examples)
        if options.null_threshold == "auto" and not (unanswerable and options.has_dev):
            raise ValueError("--null-threshold auto needs unanswerable questions in the training data, and dev data")
        return SpanSettings(
            max_seq_length=options.max_seq_length,
            doc_stride=min(options.doc_stride, options.max_seq_length // 2),
            max_query_length=options.max_query_length,
            max_answer_length=options.max_answer_length,
            unanswerable=unanswerable,
            null_threshold=0.0 if options.null_threshold == "auto" else options.null_threshold,
        )

    def is_usable(self, example: SpanExample) -> bool:
        if not example.answers:
            return True
        return is_at(example.context, example.answers[0], example.answer_start)

    def unusable_hint(self, examples: Sequence[SpanExample]) -> str:
        units = Counter(counted_in(item.context, item.answers[0], item.answer_start) for item in examples)
        del units[""]
        return ", ".join(f"{count:,} would fit if answer_start counted {unit}" for unit, count in units.items())

    def warnings(self, task: AnyTask, examples: Sequence[SpanExample]) -> list[str]:
        """Warn of answers that are too long, or begin or end inside a word: most of those are errors."""
        answered = [example for example in examples if example.answers]
        if not answered:
            return [f"none of the {len(examples):,} questions has an answer"] if len(examples) > 1 else []
        lines = []
        answers = [example.answers for example in answered]
        lengths = iter(map(len, task.tokenizer.tokenize(list(chain.from_iterable(answers)), ids_only=True)))
        shortest = [min(next(lengths) for _ in item) for item in answers]
        limit = task.settings.max_answer_length
        if count := sum(length > limit for length in shortest):
            lines.append(
                f"{count:,} of {len(answered):,} answers are longer than {limit} tokens (up to {max(shortest):,}), and "
                "can never be predicted: raise --max-answer-length"
            )
        usable = list(filter(self.is_usable, answered))
        if inside := [item for example in usable if (item := _inside_words(example))]:
            words = list(chain.from_iterable(inside))
            tokens = dict(zip(words, task.tokenizer.tokenize([text for text, _ in words]), strict=True))
            in_tokens = sum(any(offset not in tokens[text, offset].offsets for text, offset in item) for item in inside)
            text, offset = words[0]
            more = f"; {in_tokens:,} of them inside a token, and are trained with the whole token" if in_tokens else ""
            lines.append(
                f"{len(inside):,} of {len(usable):,} answers begin or end inside a word, as between "
                f"`{text[:offset][-20:]}` and `{text[offset:][:20]}`{more}: check answer and answer_start"
            )
        return lines

    def label(self, task: AnyTask, example: SpanExample, features: Sequence[Window]) -> list[LabelledFeatures]:
        return [LabelledFeatures((window,), answer_positions(example, window)) for window in features]

    def without_label(self, task: AnyTask, features: Sequence[Window]) -> list[LabelledFeatures]:
        return [LabelledFeatures((window,), (IGNORED, IGNORED)) for window in features]

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """Return the loss. Padding is left out of the softmax, so that the loss does not depend on the batching."""
        losses = [
            F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORED)
            for logits, labels in zip(boundary_logits(outputs, batch), batch.targets["labels"].unbind(1), strict=True)
        ]
        return torch.stack(losses).mean()


def boundary_logits(outputs: Mapping[str, Tensor], batch: Batch) -> list[Tensor]:
    """Return the start and the end logits, [windows, length] each, minus infinity at padding."""
    padding = batch.inputs["attention_mask"] == 0
    return [outputs[name].float().masked_fill(padding, -torch.inf) for name in ("start_logits", "end_logits")]


def _inside_words(example: SpanExample) -> list[tuple[str, int]]:
    """Return the words inside which an answer begins or ends, and the offset in each."""
    found = []
    for offset in _answer_offsets(example):
        first, end = word_around(example.context, offset)
        if end > first:
            found.append((example.context[first:end], offset - first))
    return found


def _answer_offsets(example: SpanExample) -> tuple[int, int]:
    """Return the begin and the end of the answer in the context, without white space around it."""
    answer = example.answers[0]
    start = example.answer_start + len(answer) - len(answer.lstrip())
    return start, start + len(answer.strip())


def answer_positions(example: SpanExample, window: Window) -> tuple[int, int]:
    """Return the first and last token of the answer; (0, 0), that is [CLS], if the window lacks a part of it.

    Source: convert_examples_to_features of google-research/bert run_squad.py.
    """
    if not example.answers:
        return 0, 0
    start, end = _answer_offsets(example)
    inside = window.in_context & (window.offsets[:, 1] > start) & (window.offsets[:, 0] < end)
    tokens = np.flatnonzero(inside)
    if not len(tokens) or window.offsets[tokens[0], 0] > start or window.offsets[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])
