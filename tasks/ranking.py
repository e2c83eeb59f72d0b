"""Ranking: which of several documents fits a query best, by a model of another task.

Models that give a number or labels for pairs (cross-encoders) read the query with each window of a document, and the
best window counts, as in Dai and Callan 2019 (MaxP). Models that answer questions rank documents by the lead of their
best span over "no answer" (Clark and Gardner 2018); `tasks.spans` orders the contexts of a question in the same way.
Models with token vectors read query and documents apart: each token of the query counts with the cosine of the closest
token of the document (MaxSim, Khattab and Zaharia 2020).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from tasks._encode import EMPTY, prompt_ids_of, raise_if_invalid, tokenize_fitting, tokenize_lists, window_bounds
from tasks.base import NOT_FINITE, AnyTask, InvalidExample, InvalidExamplesError, Outputs, Task, TaskSettings, is_finite
from tasks.classification import Classification, sigmoid
from tasks.features import Features
from tasks.prompts import InputType
from tasks.regression import Regression
from tasks.spans import SpanExample, Spans, Window, best_leads
from tasks.text.tokenizer import Tokens
from tasks.token_embedding import TOKEN_VECTORS, TokenEmbedding, TokenFeatures

RELEVANT: dict[tuple[str, ...], str] = {("0", "1"): "1", ("LABEL_0", "LABEL_1"): "LABEL_1"}
"""Labels of cross-encoders with two classes -> the one that means "fits"."""
QUERY = -1
"""Number of a query that is read alone, among the documents."""


@dataclass(frozen=True, slots=True)
class RankingExample:
    """A query, and the documents to rank."""

    query: str
    documents: tuple[str, ...]
    num_unread: int = 0
    """Number of further documents, which are not scored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentWindow(Features):
    """A query and one window of a document."""

    document: int
    """Number of the document in the example."""


@dataclass(frozen=True)
class Ranking(Task[RankingExample, Any, np.ndarray, TaskSettings]):
    """Scores documents, [documents] float64; higher ones fit better. `settings` are those of the scoring task.

    Outputs may be None if there was no time for them. Documents with such windows are masked.
    """

    name: ClassVar[str] = "rerank"
    settings_type: ClassVar[type[TaskSettings]] = TaskSettings

    scorer: AnyTask
    """Task of the model."""
    raw_scores: bool = False
    """True for scores before the activation function: outputs of the network, log-odds, or leads."""

    def decode(self, example: RankingExample, features: Sequence[Any], outputs: Sequence[Outputs | None]) -> np.ndarray:
        count, pairs = len(example.documents), list(zip(features, outputs, strict=True))
        missing = {self._document(item) for item, output in pairs if output is None}
        unscored = np.isin(np.arange(count), list(missing)) | (QUERY in missing)
        if unscored.all():
            return np.ma.masked_all(count)
        found = [(item, output) for item, output in pairs if output is not None and self._document(item) not in missing]
        scores = self._raw_scores(count, [item for item, _ in found], [output for _, output in found])
        scores = scores if self.raw_scores else self._activated(scores)
        return np.ma.array(scores, mask=unscored) if missing else scores

    def prediction_problem(self, prediction: np.ndarray) -> str:
        scored = np.ma.compressed(prediction)
        return "" if is_finite(scored) else NOT_FINITE  # log-odds of a logit that is minus infinity

    def _document(self, features: Any) -> int:
        """Return the number of the document that a window is of; `QUERY` for the query."""
        number: int = features.document
        return number

    @abstractmethod
    def _raw_scores(self, count: int, features: Sequence[Any], outputs: Sequence[Outputs]) -> np.ndarray:
        """Return the score of each of `count` documents before the activation function, [documents] float64."""

    def _activated(self, scores: np.ndarray) -> np.ndarray:
        """Return scores from 0 to 1."""
        return sigmoid(scores)


@dataclass(frozen=True)
class PairRanking(Ranking):
    """Ranks by a regression or classification of pairs (query, document)."""

    output_names: ClassVar[tuple[str, ...]] = Regression.output_names
    token_outputs: ClassVar[bool] = False

    label: int = 0
    """Label of a classification whose probability is the score: its number."""

    @property
    def max_query_length(self) -> int:
        """Longest query in tokens: half of what the model reads."""
        return self.tokenizer.pair.capacity(self.settings.max_seq_length) // 2

    def encode(self, examples: Sequence[RankingExample], *, truncate: bool = True) -> list[list[DocumentWindow]]:
        invalid: list[InvalidExample] = []
        longest = self.max_query_length
        queries = tokenize_fitting(
            self.tokenizer, [item.query for item in examples], "query", longest, invalid, truncate=truncate
        )
        lists = [example.documents for example in examples]
        documents = tokenize_lists(self.tokenizer, lists, lambda index, number: f"documents[{number}]", invalid)
        raise_if_invalid(invalid)
        return [
            [window for number, document in enumerate(items) for window in self._windows(query, document, number)]
            for query, items in zip(queries, documents, strict=True)
        ]

    def _windows(self, query: Tokens, document: Tokens, number: int) -> Iterator[DocumentWindow]:
        query_ids = query.ids
        capacity = self.tokenizer.pair.capacity(self.settings.max_seq_length) - len(query_ids)
        stride = capacity - capacity // 4  # a quarter overlaps, so that few sentences are cut in both windows
        bounds = window_bounds(len(document), capacity, stride)
        for start, end in self.tokenizer.report_sequences(bounds):
            yield DocumentWindow(
                **self.tokenizer.assemble(query_ids, document.ids[start:end]),
                num_truncated=0 if number or start else len(query) - len(query_ids),
                document=number,
            )

    def _raw_scores(self, count: int, features: Sequence[DocumentWindow], outputs: Sequence[Outputs]) -> np.ndarray:
        logits = np.array([output["logits"] for output in outputs], dtype=np.float64)
        if self.scorer.name == Regression.name:
            of_windows = logits[:, 0]
        elif self.scorer.settings.is_multi_label:
            of_windows = logits[:, self.label]
        else:
            others = np.delete(logits, self.label, axis=1)
            of_windows = logits[:, self.label] - np.logaddexp.reduce(others, axis=1)
        scores = np.full(count, -np.inf)
        np.maximum.at(scores, [window.document for window in features], of_windows)
        return scores

    def _activated(self, scores: np.ndarray) -> np.ndarray:
        is_number = self.scorer.name == Regression.name and self.scorer.settings.activation == "identity"
        return scores if is_number else super()._activated(scores)


@dataclass(frozen=True)
class SpanRanking(Ranking):
    """Ranks by the lead of a document's best answer over "no answer"."""

    output_names: ClassVar[tuple[str, ...]] = Spans.output_names
    token_outputs: ClassVar[bool] = True

    def encode(self, examples: Sequence[RankingExample], *, truncate: bool = True) -> list[list[Any]]:
        spans = replace(self.scorer, tokenizer=self.tokenizer)
        questions = [
            SpanExample(example.query, example.documents[0], more_contexts=example.documents[1:])
            for example in examples
        ]
        try:
            return spans.encode(questions, truncate=truncate)
        except InvalidExamplesError as error:
            names = {"question": "query", "context": "documents[0]"}
            fields = [names.get(item.field, item.field.replace("contexts", "documents")) for item in error.invalid]
            invalid = [replace(item, field=field) for item, field in zip(error.invalid, fields, strict=True)]
            raise InvalidExamplesError(invalid) from None

    def _raw_scores(self, count: int, features: Sequence[Any], outputs: Sequence[Outputs]) -> np.ndarray:
        return best_leads(count, features, outputs, self.scorer.settings.max_answer_length)

    def _document(self, features: Window) -> int:
        return features.context


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenWindow(TokenFeatures):
    """A query, or one window of a document."""

    document: int
    """Number of the document in the example; `QUERY` for the query, which comes first."""


@dataclass(frozen=True)
class TokenRanking(Ranking):
    """Ranks by token vectors: a score is the sum of the cosines between each token of the query and its closest one."""

    output_names: ClassVar[tuple[str, ...]] = TokenEmbedding.output_names
    token_outputs: ClassVar[bool] = True
    length_setting: ClassVar[str] = "query_length"  # documents are read in windows

    def encode(self, examples: Sequence[RankingExample], *, truncate: bool = True) -> list[list[TokenWindow]]:
        invalid: list[InvalidExample] = []
        reader, writer = self._role("query"), self._role("document")
        queries = reader.tokenize([item.query for item in examples], "query", invalid, truncate=truncate)
        documents = self._tokenize_documents(writer, [item.documents for item in examples], invalid)
        raise_if_invalid(invalid)
        return [
            [
                TokenWindow(
                    **reader.assemble(query.ids[: reader.capacity]),
                    num_truncated=max(0, len(query) - reader.capacity),
                    document=QUERY,
                ),
                *(
                    TokenWindow(**arrays, document=number)
                    for number, document in enumerate(items)
                    for arrays in writer.windows(document)
                ),
            ]
            for query, items in zip(queries, documents, strict=True)
        ]

    def _tokenize_documents(
        self, writer: TokenEmbedding, lists: Sequence[Sequence[str]], invalid: list[InvalidExample]
    ) -> list[list[Tokens]]:
        """Tokenize documents behind their prompt. Add those without words to `invalid`."""
        if writer.prompt:
            places = ((index, number, text) for index, texts in enumerate(lists) for number, text in enumerate(texts))
            invalid += [InvalidExample(i, f"documents[{n}]", EMPTY) for i, n, text in places if not text.strip()]
        texts = [[writer.prompt + text for text in texts] for texts in lists]
        return tokenize_lists(self.tokenizer, texts, lambda index, number: f"documents[{number}]", invalid)

    def prompt_problem(self) -> str:
        """Return why the prompt leaves too little room in a window of a document; empty if it leaves half of it."""
        writer = self._role("document")
        length = len(prompt_ids_of(self.tokenizer, writer.prompt))
        if 2 * length <= writer.capacity:
            return ""
        return f"its prompt for documents has `{length}` tokens, more than half of a window of {writer.capacity}"

    def _role(self, kind: InputType) -> TokenEmbedding:
        """Return the task of the model for queries or documents, with their prompt."""
        assert isinstance(self.scorer, TokenEmbedding)
        name = self.scorer.settings.prompt_name_for(kind)
        return replace(self.scorer, tokenizer=self.tokenizer, is_query=kind == "query", prompt_name=name)

    def _raw_scores(self, count: int, features: Sequence[TokenWindow], outputs: Sequence[Outputs]) -> np.ndarray:
        query, *windows = (output[TOKEN_VECTORS][item.kept] for item, output in zip(features, outputs, strict=True))
        closest = np.full((count, len(query)), -np.inf)
        for item, vectors in zip(features[1:], windows, strict=True):
            np.maximum(closest[item.document], (query @ vectors.T).max(axis=1), out=closest[item.document])
        return closest.sum(axis=1)

    def _activated(self, scores: np.ndarray) -> np.ndarray:
        return scores


def ranks_by_itself(task: AnyTask) -> bool:
    """Return whether a model ranks documents for any query without a `label`.

    Models that answer questions rank only if they are named: they know questions alone, and even those worse than words
    do (docs/experiments/retrieval.md).
    """
    return isinstance(task, Regression) or (isinstance(task, TokenEmbedding) and task.settings.normalize)


def create_ranking(task: AnyTask, *, label: str = "", raw_scores: bool = False) -> Ranking:
    """Return the ranking by a model.

    Args:
        label: label of a classification that means "fits"; empty for the second of the labels 0 and 1.

    Raises:
        ValueError: when the model cannot rank documents, or not by this label.
    """
    common = {"tokenizer": task.tokenizer, "settings": task.settings, "scorer": task, "raw_scores": raw_scores}
    if label and not isinstance(task, Classification):
        raise ValueError(f"`label` is for models with labels, not for `{task.name}`; leave it out: `{label}`")
    if isinstance(task, Regression):
        return PairRanking(**common)
    if isinstance(task, Spans):
        if not task.settings.compares_contexts:
            raise ValueError("it was not trained on unanswerable questions, so its answers do not compare documents")
        return SpanRanking(**common)
    if isinstance(task, TokenEmbedding):
        if not task.settings.normalize:
            raise ValueError("its vectors have no length of 1, so they are not compared; export it with --normalize")
        ranking = TokenRanking(**common)
        if problem := ranking.prompt_problem():
            raise ValueError(problem)
        return ranking
    if not isinstance(task, Classification):
        tasks = ", ".join(kind.name for kind in (Regression, Classification, Spans, TokenEmbedding))
        raise ValueError(f"models for `{task.name}` cannot rank documents; use one of {tasks}")
    labels = task.settings.labels
    chosen = label or RELEVANT.get(labels, "")
    if chosen not in labels:
        reason = f"unknown: `{label}`" if label else "missing"
        raise ValueError(f"`label` is {reason}; name the label that means that a document fits: {', '.join(labels)}")
    return PairRanking(**common, label=labels.index(chosen))
