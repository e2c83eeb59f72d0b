"""Tagging: a tag for each word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.tagging import TaggingExample, TaggingSettings, WordWindow
from tasks.tags import find_malformed_tag, is_strict, is_strict_at_ends
from tasks.text.joined_words import is_mark, learn_joined_words
from training.data.tagging import read_tagging, read_untagged
from training.loop.types import Batch
from training.objectives.base import (
    IGNORED,
    Baseline,
    LabelledFeatures,
    Targets,
    TaskOptions,
    all_label_names,
)
from training.objectives.baselines import majority_tag
from training.objectives.classes import ClassObjective

MAX_SPLIT_WORDS = 0.02
"""Fraction of words that running text splits differently, above which a warning is printed."""


class TaggingObjective(ClassObjective):
    """Cross entropy of the tag at the first token of each word."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"commonest tag": majority_tag}
    table_columns = (("tokens", "tags"),)
    read = staticmethod(read_tagging)
    read_unlabelled = staticmethod(read_untagged)

    def settings(self, options: TaskOptions, examples: Sequence[Any]) -> TaskSettings:
        labels, sentences = all_label_names(self, examples), [example.tags for example in examples]
        if odd := find_malformed_tag(labels):
            raise ValueError(f"tag `{odd[0]}`: {odd[1]}")
        joined = learn_joined_words([example.words for example in examples])
        return TaggingSettings(
            max_seq_length=options.max_seq_length,
            labels=labels,
            doc_stride=min(options.doc_stride, options.max_seq_length // 2),
            strict=is_strict(sentences, labels),
            strict_ends=is_strict_at_ends(sentences, labels),
            joined_marks=joined.marks,
            joined_words=joined.words,
        )

    def label_names(self, example: TaggingExample) -> Sequence[str]:
        return example.tags

    def warnings(self, task: AnyTask, examples: Sequence[TaggingExample]) -> list[str]:
        counts = Counter(chain.from_iterable(example.words for example in examples))
        split = {}  # words that become several in running text
        for word, count in counts.items():
            may_split = not (word.isascii() and word.isalnum()) and not all(map(is_mark, word))
            if may_split and len(task.complete(TaggingExample((), source=word)).words) > 1:
                split[word] = count
        num_split, num_words = sum(split.values()), counts.total()
        if num_split <= MAX_SPLIT_WORDS * num_words:
            return []
        some = ", ".join(f"`{word[:20]}`" for word in list(split)[:3])
        return [
            f"{num_split / num_words:.0%} of the words ({some}) become several words in running text; send such "
            "text as lists of words, or train on text that is split in the same way"
        ]

    def label(self, task: AnyTask, example: TaggingExample, features: Sequence[WordWindow]) -> list[LabelledFeatures]:
        """Label each word in one window only: the window that has most context for it, and that tags it."""
        items = []
        for window in features:
            labels = np.full(len(window), IGNORED)
            words, positions = window.tagged_words
            labels[positions] = [task.settings.labels.index(example.tags[word]) for word in words]
            if len(words):
                items.append(LabelledFeatures((window,), tuple(labels.tolist())))
        return items

    def targets(self, examples: Sequence[LabelledFeatures]) -> Targets:
        rows = [torch.tensor(item.labels) for item in examples]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        return {"labels": padded}, {"loss": self.sum_weights(padded)}

    def without_label(self, task: AnyTask, features: Sequence[WordWindow]) -> list[LabelledFeatures]:
        with_words = [window for window in features if len(window.tagged_words[0])]
        return [LabelledFeatures((window,), (IGNORED,) * len(window)) for window in with_words]

    def loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        labels = batch.targets["labels"]
        logits = outputs["logits"].float()[:, : labels.shape[1]]
        return self.cross_entropy(logits.flatten(0, 1), labels.flatten())
