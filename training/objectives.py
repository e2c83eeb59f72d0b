"""How each task is fine-tuned: its settings out of recipe and data, the labels of its sequences, its loss.

To fine-tune another task, subclass `Objective` and add it to OBJECTIVES (and see CONTRIBUTING, "Adding things").
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tasks import AnyTask
from tasks.base import TaskSettings
from tasks.classification import ClassificationExample, ClassificationSettings
from tasks.features import Features
from tasks.joined_words import is_mark, learn_joined_words, word_around
from tasks.masked_lm import MaskedLM
from tasks.multiple_choice import MultipleChoiceExample, MultipleChoiceSettings
from tasks.regression import Regression, RegressionExample, RegressionSettings
from tasks.spans import SpanExample, SpanSettings, Window
from tasks.tagging import TaggingExample, TaggingSettings, WordWindow
from tasks.tags import find_malformed_tag, is_strict, is_strict_at_ends
from tasks.tokenizer import Tokenizer
from training.baselines import (
    first_words,
    majority_choice,
    majority_label,
    majority_tag,
    mean_label,
    no_answer,
    unigram,
)
from training.data.examples import Examples
from training.loop.types import Batch
from training.model.heads import BertForSequenceRegression, BertModel
from training.similarity import word_overlap

if TYPE_CHECKING:
    from training.finetune import FinetuneRecipe

Baseline = Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
IGNORED = -100
"""Label of tokens that take no part in the loss."""


@dataclass(frozen=True, slots=True)
class LabelledFeatures:
    """What is drawn and shuffled as a whole: a sequence with its labels, or all sequences of a multiple choice."""

    features: tuple[Features, ...]
    labels: tuple[int | float, ...]

    @property
    def length(self) -> int:
        """Tokens of the longest sequence."""
        return max(map(len, self.features))


class Objective:
    """One task's part of fine-tuning."""

    max_seq_length: ClassVar[int] = 128
    """Where the recipe says nothing."""
    baselines: ClassVar[Mapping[str, Baseline]]
    """Predictions without a model, by name: train and dev examples -> scores on dev, the main score first."""
    unusable: ClassVar[str] = ""
    """Why examples are left out."""

    def settings(self, recipe: FinetuneRecipe, examples: Sequence[Any], max_seq_length: int) -> TaskSettings:
        """The settings of the task."""
        raise NotImplementedError

    def label_names(self, example: Any) -> Sequence[str]:
        """Names among the settings' labels that the truth of an example uses."""
        return ()

    def is_usable(self, example: Any) -> bool:
        """Whether an example can be learnt from."""
        return True

    def doubts(self, task: AnyTask, examples: Sequence[Any]) -> list[str]:
        """Describe examples that cannot be learnt, or answers that can never be given, a line each."""
        return []

    def label(self, task: AnyTask, example: Any, features: Sequence[Any]) -> list[LabelledFeatures]:
        """The items of one example."""
        raise NotImplementedError

    def targets(self, items: Sequence[LabelledFeatures]) -> tuple[dict[str, Tensor], int]:
        """What the loss needs of a batch.

        Returns:
            Tensors by name, here `labels` [items, labels]; and by how many targets the sum of the losses is divided.
        """
        return {"labels": torch.tensor([item.labels for item in items])}, len(items)

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The loss, summed over targets."""
        raise NotImplementedError

    def answering(self, model: BertModel, task: AnyTask) -> AbstractContextManager[None]:
        """Give the network the head that it is evaluated and saved with, until training goes on."""
        return nullcontext()


class ClassificationObjective(Objective):
    """Cross entropy of the label."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"majority label": majority_label}

    def settings(self, recipe: FinetuneRecipe, examples: Sequence[Any], max_seq_length: int) -> TaskSettings:
        return ClassificationSettings(max_seq_length=max_seq_length, labels=all_label_names(self, examples))

    def label_names(self, example: ClassificationExample) -> Sequence[str]:
        return (example.label or "",)

    def label(
        self, task: AnyTask, example: ClassificationExample, features: Sequence[Features]
    ) -> list[LabelledFeatures]:
        return [LabelledFeatures(tuple(features), (task.settings.labels.index(example.label),))]

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = network(**batch.inputs)["logits"].float()
        return {"loss": F.cross_entropy(logits, batch.targets["labels"][:, 0], reduction="sum")}


class RegressionObjective(Objective):
    """Squared error of labels that are standardised by the mean and deviation of the training data."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"mean label": mean_label}

    def settings(self, recipe: FinetuneRecipe, examples: Sequence[Any], max_seq_length: int) -> TaskSettings:
        labels = np.array([example.label or 0 for example in examples], dtype=np.float64)
        if not np.ptp(labels):
            return RegressionSettings(max_seq_length=max_seq_length, label_mean=float(labels[0]))
        return RegressionSettings(
            max_seq_length=max_seq_length, label_mean=float(labels.mean()), label_deviation=float(labels.std())
        )

    def label(self, task: AnyTask, example: RegressionExample, features: Sequence[Features]) -> list[LabelledFeatures]:
        settings = task.settings
        return [
            LabelledFeatures(
                tuple(features), ((float(example.label or 0) - settings.label_mean) / settings.label_deviation,)
            )
        ]

    @contextmanager
    def answering(self, model: BertModel, task: AnyTask) -> Iterator[None]:
        assert isinstance(model, BertForSequenceRegression)
        own = model.classifier
        model.classifier = _scaled(own, task.settings.label_deviation, task.settings.label_mean)
        try:
            yield
        finally:
            model.classifier = own

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"loss": F.mse_loss(network(**batch.inputs)["logits"].float(), batch.targets["labels"], reduction="sum")}


def standardise_head(model: BertForSequenceRegression, settings: RegressionSettings) -> None:
    """Turn a trained head, which answers in the labels' unit, into one that answers in standardised labels."""
    deviation = settings.label_deviation
    model.classifier = _scaled(model.classifier, 1 / deviation, -settings.label_mean / deviation)


def _scaled(layer: nn.Linear, scale: float, shift: float) -> nn.Linear:
    """A linear layer whose outputs are scaled and then shifted."""
    found = copy.deepcopy(layer)
    with torch.no_grad():
        found.weight.copy_(layer.weight.double() * scale)
        found.bias.copy_(layer.bias.double() * scale + shift)
    return found


class MultipleChoiceObjective(Objective):
    """Cross entropy of the right choice, among those of its example; the choices of an example stay together."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"commonest choice": majority_choice}

    def settings(self, recipe: FinetuneRecipe, examples: Sequence[Any], max_seq_length: int) -> TaskSettings:
        return MultipleChoiceSettings(max_seq_length=max_seq_length)

    def label(
        self, task: AnyTask, example: MultipleChoiceExample, features: Sequence[Features]
    ) -> list[LabelledFeatures]:
        assert example.label is not None
        return [LabelledFeatures(tuple(features), (example.label,))]

    def targets(self, items: Sequence[LabelledFeatures]) -> tuple[dict[str, Tensor], int]:
        targets, count = super().targets(items)
        return targets | {"num_choices": torch.tensor([len(item.features) for item in items])}, count

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        logits = network(**batch.inputs)["logits"].float().split(batch.targets["num_choices"].tolist())
        padded = nn.utils.rnn.pad_sequence(logits, batch_first=True, padding_value=-torch.inf)
        return {"loss": F.cross_entropy(padded, batch.targets["labels"][:, 0], reduction="sum")}


MOST_DIVIDED = 0.02
"""Fraction of words that running text divides otherwise, above which a warning says so."""


def _is_divided(task: AnyTask, word: str) -> bool:
    if (word.isascii() and word.isalnum()) or all(map(is_mark, word)):
        return False
    return len(task.complete(TaggingExample((), source=word)).words) > 1


class TaggingObjective(Objective):
    """Cross entropy of the tag at the first token of each word."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"commonest tag": majority_tag}

    def settings(self, recipe: FinetuneRecipe, examples: Sequence[Any], max_seq_length: int) -> TaskSettings:
        labels, sentences = all_label_names(self, examples), [example.tags for example in examples]
        if odd := find_malformed_tag(labels):
            raise ValueError(f"tag `{odd[0]}`: {odd[1]}")
        joined = learn_joined_words([example.words for example in examples])
        return TaggingSettings(
            max_seq_length=max_seq_length,
            labels=labels,
            doc_stride=min(recipe.doc_stride, max_seq_length // 2),
            strict=is_strict(sentences, labels),
            strict_ends=is_strict_at_ends(sentences, labels),
            joined_marks=joined.marks,
            joined_words=joined.words,
        )

    def label_names(self, example: TaggingExample) -> Sequence[str]:
        return example.tags

    def doubts(self, task: AnyTask, examples: Sequence[TaggingExample]) -> list[str]:
        counts = Counter(chain.from_iterable(example.words for example in examples))
        divided = {word: count for word, count in counts.items() if _is_divided(task, word)}
        num_divided, num_words = sum(divided.values()), counts.total()
        if num_divided <= MOST_DIVIDED * num_words:
            return []
        some = ", ".join(f"`{word[:20]}`" for word in list(divided)[:3])
        return [
            f"{num_divided / num_words:.0%} of the words ({some}) are several words where they stand in running text; "
            "send such text as lists of words, or train on text that is divided as there"
        ]

    def label(self, task: AnyTask, example: TaggingExample, features: Sequence[WordWindow]) -> list[LabelledFeatures]:
        """A word is learnt where it will be tagged: once, with the most context."""
        items = []
        for window in features:
            labels = np.full(len(window), IGNORED)
            words, positions = window.tagged_words
            labels[positions] = [task.settings.labels.index(example.tags[word]) for word in words]
            if len(words):
                items.append(LabelledFeatures((window,), tuple(labels.tolist())))
        return items

    def targets(self, items: Sequence[LabelledFeatures]) -> tuple[dict[str, Tensor], int]:
        rows = [torch.tensor(item.labels) for item in items]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
        return {"labels": padded}, int((padded != IGNORED).sum())

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        labels = batch.targets["labels"]
        logits = network(**batch.inputs)["logits"].float()[:, : labels.shape[1]]
        return {"loss": F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum", ignore_index=IGNORED)}


def _inside_words(example: SpanExample) -> list[tuple[str, int]]:
    """The words that an answer begins or ends inside of, and where in them."""
    text, answer = example.context, example.answers[0]
    start = example.answer_start + len(answer) - len(answer.lstrip())
    found = []
    for place in (start, start + len(answer.strip())):
        first, end = word_around(text, place)
        if end > first:
            found.append((text[first:end], place - first))
    return found


class SpanObjective(Objective):
    """Mean of the cross entropies of the answer's first and last token."""

    baselines: ClassVar[Mapping[str, Baseline]] = {"first words": first_words, "always no answer": no_answer}

    max_seq_length = 384
    unusable = "no answer stands at its answer_start"

    def settings(self, recipe: FinetuneRecipe, examples: Sequence[Any], max_seq_length: int) -> TaskSettings:
        unanswerable = any(not example.answers for example in examples)
        if recipe.null_threshold == "auto" and not (unanswerable and recipe.dev):
            raise ValueError("--null-threshold auto needs unanswerable questions in the training data, and dev data")
        return SpanSettings(
            max_seq_length=max_seq_length,
            doc_stride=min(recipe.doc_stride, max_seq_length // 2),
            max_query_length=recipe.max_query_length,
            max_answer_length=recipe.max_answer_length,
            unanswerable=unanswerable,
            null_threshold=0.0 if recipe.null_threshold == "auto" else recipe.null_threshold,
        )

    def is_usable(self, example: SpanExample) -> bool:
        if not example.answers:
            return True
        answer, start = example.answers[0], example.answer_start
        return bool(answer.strip()) and example.context[start : start + len(answer)] == answer

    def doubts(self, task: AnyTask, examples: Sequence[SpanExample]) -> list[str]:
        return [*self._long_answers(task, examples), *self._divided_words(task, examples)]

    def _divided_words(self, task: AnyTask, examples: Sequence[SpanExample]) -> list[str]:
        """Answers that begin or end inside a word are often marked wrongly; inside a token, nothing can give them."""
        answered = [example for example in examples if example.answers and self.is_usable(example)]
        inside = [item for example in answered if (item := _inside_words(example))]
        if not inside:
            return []
        words = [(text, place) for example in inside for text, place in example]
        tokens = dict(zip(words, task.tokenizer.tokenize([text for text, _ in words]), strict=True))
        in_tokens = sum(any(place not in tokens[text, place].offsets for text, place in item) for item in inside)
        (text, place), *_ = inside[0]
        more = f"; {in_tokens:,} of them inside a token, and are learnt with all of it" if in_tokens else ""
        where = f"as between `{text[:place][-20:]}` and `{text[place:][:20]}`"
        return [
            f"{len(inside):,} of {len(answered):,} answers begin or end inside a word, {where}{more}: see that "
            "answer and answer_start are right"
        ]

    def _long_answers(self, task: AnyTask, examples: Sequence[SpanExample]) -> list[str]:
        answered = [example.answers for example in examples if example.answers]
        lengths = iter(map(len, task.tokenizer.tokenize(list(chain.from_iterable(answered)), ids_only=True)))
        shortest = [min(next(lengths) for _ in answers) for answers in answered]
        most = task.settings.max_answer_length
        if not (count := sum(length > most for length in shortest)):
            return []
        return [
            f"{count:,} of {len(answered):,} answers are longer than {most} tokens (up to {max(shortest):,}), and can "
            "never be given: raise --max-answer-length"
        ]

    def label(self, task: AnyTask, example: SpanExample, features: Sequence[Window]) -> list[LabelledFeatures]:
        return [LabelledFeatures((window,), answer_positions(example, window)) for window in features]

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Padding takes no part in the softmax, so that the loss does not depend on how sequences are batched."""
        outputs = network(**batch.inputs)
        padding = batch.inputs["attention_mask"] == 0
        losses = [
            F.cross_entropy(outputs[name].float().masked_fill(padding, -torch.inf), labels, reduction="sum")
            for name, labels in zip(("start_logits", "end_logits"), batch.targets["labels"].unbind(1), strict=True)
        ]
        return {"loss": torch.stack(losses).mean()}


OBJECTIVES: dict[str, Objective] = {
    "classification": ClassificationObjective(),
    "spans": SpanObjective(),
    "regression": RegressionObjective(),
    "multiple-choice": MultipleChoiceObjective(),
    "tagging": TaggingObjective(),
}


def best_baseline(
    task: str, train: Sequence[Any], dev: Sequence[Any], tokenizer: Tokenizer
) -> tuple[str, dict[str, float]]:
    """Return name and dev scores of the best baseline of a task, fitted on train; the first score decides."""
    if task == MaskedLM.name:
        return "unigram", unigram(train, dev, tokenizer)
    found = [(name, scores_of(train, dev)) for name, scores_of in OBJECTIVES[task].baselines.items()]
    if task == Regression.name:
        found.append(("word overlap", word_overlap(dev, tokenizer)))
    return max(found, key=lambda item: list(item[1].values()))


def all_label_names(objective: Objective, examples: Sequence[Any]) -> tuple[str, ...]:
    """The label names that some examples use, sorted."""
    return tuple(sorted({name for example in examples for name in objective.label_names(example)}))


def find_unknown_label(objective: Objective, examples: Examples, known: Sequence[str]) -> tuple[str, str] | None:
    """Place and name of the first label that is none of those known; None where there is none such."""
    names, placed = set(known), examples.located()
    labels = ((place, name) for place, example in placed for name in objective.label_names(example))
    return next((label for label in labels if label[1] not in names), None)


def answer_positions(example: SpanExample, window: Window) -> tuple[int, int]:
    """First and last token of the answer, without white space around it; (0, 0), that is [CLS], when the window does
    not show all of it.

    Source: convert_examples_to_features of google-research/bert run_squad.py.
    """
    if not example.answers:
        return 0, 0
    answer = example.answers[0]
    start = example.answer_start + len(answer) - len(answer.lstrip())
    end = start + len(answer.strip())
    inside = window.in_context & (window.offsets[:, 1] > start) & (window.offsets[:, 0] < end)
    tokens = np.flatnonzero(inside)
    if not len(tokens) or window.offsets[tokens[0], 0] > start or window.offsets[tokens[-1], 1] < end:
        return 0, 0
    return int(tokens[0]), int(tokens[-1])
