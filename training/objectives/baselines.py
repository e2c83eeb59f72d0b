"""Baselines: scores of predictions that need no model, printed with every score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from tasks.classification import ClassificationExample
from tasks.masked_lm import ClozeExample
from tasks.metrics import accuracy, classification_scores, multi_label_scores, regression_scores, tagging_scores
from tasks.multiple_choice import MultipleChoiceExample
from tasks.regression import RegressionExample
from tasks.spans import SpanExample, answer_scores, scored_by_characters
from tasks.tagging import TaggingExample
from tasks.tags import has_no_scheme, to_iob2
from tasks.text.languages import split_characters
from tasks.text.tokenizer import Tokenizer
from training.data.pretraining import Masking

EPSILON = 1e-9
"""Smaller fractions of tokens count as 0."""


def majority_label(train: Sequence[ClassificationExample], dev: Sequence[ClassificationExample]) -> dict[str, float]:
    """Predict the most frequent label of train; in multi-label data, as many as have the best micro F1 on train."""
    if train[0].labels is None:
        counts = Counter(example.label or "" for example in train)
        predictions = [counts.most_common(1)[0][0]] * len(dev)
        return classification_scores([example.label or "" for example in dev], predictions, sorted(counts))
    ranked = Counter(name for example in train for name in example.labels or ()).most_common()
    sums = np.cumsum([count for _, count in ranked])
    f1 = 2 * sums / (len(train) * np.arange(1, len(ranked) + 1) + sums[-1])
    names = [name for name, _ in ranked]
    predicted = [names[: int(f1.argmax()) + 1]] * len(dev)
    return multi_label_scores([example.labels or () for example in dev], predicted, names)


def mean_label(train: Sequence[RegressionExample], dev: Sequence[RegressionExample]) -> dict[str, float]:
    """Predict the mean of train; its correlations are 0 by definition."""
    mean = float(np.mean([example.label or 0.0 for example in train]))
    return regression_scores([example.label or 0.0 for example in dev], [mean] * len(dev))


def majority_choice(train: Sequence[MultipleChoiceExample], dev: Sequence[MultipleChoiceExample]) -> dict[str, float]:
    """Predict the choice that is right most often in train."""
    choice = Counter(example.label for example in train).most_common(1)[0][0]
    return {"accuracy": accuracy([example.label for example in dev], [choice] * len(dev))}


def majority_tag(train: Sequence[TaggingExample], dev: Sequence[TaggingExample]) -> dict[str, float]:
    """Predict each word's most frequent tag in train, for new words the most frequent tag of all.

    Entities are scored as IOB2 tags, so that the same entities have the same score in every scheme.
    """
    labels = {tag for example in train for tag in example.tags}
    scores = _majority_tag_scores(train, dev, labels)
    if has_no_scheme(labels):
        return scores
    train, dev = ([replace(item, tags=tuple(to_iob2(item.tags, labels))) for item in items] for items in (train, dev))
    return _majority_tag_scores(train, dev) | {"accuracy": scores["accuracy"]}


def _majority_tag_scores(
    train: Sequence[TaggingExample], dev: Sequence[TaggingExample], labels: Collection[str] = ()
) -> dict[str, float]:
    counts: dict[str, Counter[str]] = {}
    for example in train:
        for word, tag in zip(example.words, example.tags, strict=True):
            counts.setdefault(word, Counter())[tag] += 1
    rest = Counter(tag for example in train for tag in example.tags).most_common(1)[0][0]
    best = {word: tags.most_common(1)[0][0] for word, tags in counts.items()}
    predictions = [[best.get(word, rest) for word in example.words] for example in dev]
    return tagging_scores([example.tags for example in dev], predictions, labels)


def first_words(train: Sequence[SpanExample], dev: Sequence[SpanExample]) -> dict[str, float]:
    """Predict the first words of the context, with the median number of words of the answers in train.

    If answers are scored by characters, the first characters.
    """
    split: Callable[[str], list[str]] = split_characters if scored_by_characters(dev) else str.split
    count = int(median([len(split(example.answers[0])) for example in train if example.answers] or [0]))
    return answer_scores(dev, [" ".join(split(example.context)[:count]) for example in dev])


def no_answer(train: Sequence[SpanExample], dev: Sequence[SpanExample]) -> dict[str, float]:
    """Predict that no question has an answer."""
    return answer_scores(dev, [""] * len(dev))


def unigram(train: Sequence[ClozeExample], dev: Sequence[ClozeExample], tokenizer: Tokenizer) -> dict[str, float]:
    """Predict masked tokens by their frequency among the masked tokens of train, with add-one smoothing."""
    train_counts, dev_counts = (
        np.bincount(
            [tokenizer.token_id(token) or 0 for example in examples for token in example.tokens],
            minlength=tokenizer.vocab_size,
        )
        for examples in (train, dev)
    )
    smoothed = train_counts + 1.0
    loss = -(dev_counts * np.log(smoothed / smoothed.sum())).sum() / dev_counts.sum()
    return {"loss": float(loss), "accuracy": float(dev_counts[smoothed.argmax()] / dev_counts.sum())}


def masked_unigram(train: np.ndarray, dev: np.ndarray, masking: Masking) -> dict[str, float]:
    """Predict tokens by their frequency in train and by the masked input at their own position.

    [MASK] gives no information. Another token is the original (it stayed) or random; Bayes' rule gives the probability
    of each. No prediction in pretraining is better without other tokens. Frequencies have add-one smoothing.

    Args:
        train: count of each token, [vocabulary].
        dev: the same for the tokens to predict.
    """
    kept, random = 1 - masking.mask_fraction - masking.random_fraction, masking.random_fraction
    q_V, p_V = (train + 1.0) / (train + 1.0).sum(), dev / dev.sum()
    log_q_V, top = np.log(q_V), q_V.argmax()
    entropy, best = -(p_V * log_q_V).sum(), p_V[top]
    loss, accuracy = masking.mask_fraction * entropy, masking.mask_fraction * best
    if kept + random > EPSILON:
        stayed_V = kept * q_V / (kept * q_V + random / len(q_V))  # probability that the token is the original
        same_V = stayed_V + (1 - stayed_V) * q_V
        trusts_V = same_V >= (1 - stayed_V) * q_V[top]
        loss -= kept * (p_V * np.log(same_V)).sum()
        accuracy += kept * (p_V[trusts_V].sum() + (0.0 if trusts_V[top] else best))
        if random > EPSILON:
            other_V = entropy + p_V * log_q_V - (1 - p_V) * np.log1p(-stayed_V)
            loss += random * (other_V - p_V * np.log(same_V)).mean()
            accuracy += random * np.where(trusts_V, p_V, best).mean()
    return {"mlm_loss": float(loss), "mlm_accuracy": float(accuracy)}
