"""Results of the client's methods."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertline._inputs import read_count


@dataclass(frozen=True, slots=True)
class LabelScore:
    """Label with its probability."""

    label: str
    score: float
    selected: bool = False
    """True if the text has the label, according to the model."""


@dataclass(frozen=True, slots=True)
class Classification:
    """Labels for one text or pair, most likely first.

    The scores of all labels of a single-label model sum to 1; those of a multi-label model are independent.
    """

    labels: tuple[LabelScore, ...]
    multi_label: bool = False
    """True if a text has any number of labels."""

    @property
    def selected(self) -> tuple[str, ...]:
        """Labels that the text has, most likely first: exactly one, or any number with `multi_label`."""
        return tuple(item.label for item in self.labels if item.selected)

    @property
    def label(self) -> str:
        """Most likely label."""
        return self.labels[0].label

    @property
    def score(self) -> float:
        """Probability of the most likely label."""
        return self.labels[0].score


@dataclass(frozen=True, slots=True, eq=False)
class SparseVector:
    """Weights of tokens of the vocabulary, largest first; equal ones by id."""

    indices: np.ndarray
    """[weights] uint32, ids of the tokens."""
    values: np.ndarray
    """[weights] float32, above 0."""
    dim: int
    """Number of tokens in the vocabulary; `Model.dim`."""
    tokens: tuple[str, ...] = ()
    """Tokens, if requested."""


@dataclass(frozen=True, slots=True, eq=False)
class TokenVectors:
    """Vectors of the tokens of one text, in their order."""

    vectors: np.ndarray
    """[vectors, dim] float32, or the requested format."""
    offsets: np.ndarray | None = None
    """[vectors, 2] start and end of each token in its text, if requested; 0 and 0 for special tokens and markers."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Result of choosing one of several choices."""

    choice: int
    """Index of the most likely choice, from 0."""
    scores: tuple[float, ...]
    """Probabilities in the order of the choices; they sum to 1."""

    @property
    def score(self) -> float:
        """Probability of the most likely choice."""
        return self.scores[self.choice]


@dataclass(frozen=True, slots=True)
class Entity:
    """Entity text[start:end] with its type as `label`, and the mean probability of its words' tags as `score`."""

    start: int
    end: int
    text: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """Word text[start:end] with its tag, such as `B-LOC` or `O`, and the tag's probability."""

    start: int
    end: int
    tag: str
    score: float


@dataclass(frozen=True, slots=True)
class Tagging:
    """Entities of one text, in its order. Offsets are in code points, as in Python."""

    entities: tuple[Entity, ...]
    words: tuple[TaggedWord, ...]
    """All words, if requested. Offsets in a list of words count one space between words."""


@dataclass(frozen=True, slots=True)
class Span:
    """Span `contexts[context][start:end]` with its probability among the candidates. Offsets are in code points."""

    start: int
    end: int
    text: str
    score: float
    context: int = 0
    """Index of the context, from 0."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer to one question from one or several contexts."""

    spans: tuple[Span, ...]
    """Spans, best first. If there is no answer, these are the spans that lost against "no answer"."""
    has_answer: bool
    """False if no context answers the question, according to the model."""
    no_answer_score: float
    """Probability of "no answer"; 0 for a model trained on answerable questions only."""

    @property
    def text(self) -> str:
        """Text of the answer; empty for "no answer"."""
        return self.spans[0].text if self.has_answer else ""

    @property
    def score(self) -> float:
        """Probability of the answer, or of "no answer"."""
        return self.spans[0].score if self.has_answer else self.no_answer_score


@dataclass(frozen=True, slots=True)
class RankedDocument:
    """Document of a query, by its position in the list of documents, with its score: higher ones fit better."""

    document: int
    score: float


@dataclass(frozen=True, slots=True)
class Ranking:
    """Documents of one query, best first; equal ones in the order of the list."""

    documents: tuple[RankedDocument, ...]
    num_scored: int | None = None
    """With `best_effort`, the number of documents that were scored."""

    @property
    def order(self) -> tuple[int, ...]:
        """Positions of the documents, best first."""
        return tuple(item.document for item in self.documents)


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Token with its probability over the whole vocabulary."""

    token: str
    score: float


@dataclass(frozen=True, slots=True)
class MaskFill:
    """Candidates for one mask."""

    tokens: tuple[TokenScore, ...]
    """Tokens, most likely first."""
    targets: tuple[TokenScore, ...]
    """Requested `targets`, in their order."""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """Tokens of one text or pair, with [CLS] and [SEP]."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    """(start, end) of each token in its text: the second text where `type_ids` is 1."""
    type_ids: tuple[int, ...]
    """0 for tokens of the first text, 1 for those of the second."""
    special: tuple[bool, ...]
    """True for added tokens: [CLS] and [SEP]."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Time of a request at the server, by stage, in seconds."""

    tokenize_s: float
    queue_s: float
    inference_s: float


@dataclass(slots=True)
class Usage:
    """Tokens, truncation and timings of calls. A method adds to the `usage` that it gets, unless the call fails."""

    num_tokens: list[int] = field(default_factory=list)
    """Number of tokens of each input that the model read."""
    num_truncated: list[int] = field(default_factory=list)
    """Number of tokens truncated from each input. The end of a very long text is cut before tokenization and counts as
    one token."""
    timings: list[Timings] = field(default_factory=list)
    """Timings of each request that was sent."""
    space: str = ""
    """Space of the last vectors, see `Model.space`."""

    @property
    def truncated(self) -> list[int]:
        """Positions of the inputs that were truncated."""
        return [index for index, count in enumerate(self.num_truncated) if count]


@dataclass(frozen=True, slots=True)
class Model:
    """Version of a model. If it is not loaded, only name, version, state and error are set."""

    name: str
    version: str
    task: str
    """`embedding`, `sparse-embedding`, `token-embedding`, `classification`, `regression`, `multiple-choice`, `spans`,
    `tagging` or `masked-lm`."""
    precision: str
    """`fp32`, `fp16` or `int8`."""
    max_seq_length: int
    """Maximum sequence length, in tokens."""
    dim: int
    """Dimension of the vectors; 0 for tasks without vectors."""
    labels: tuple[str, ...]
    """Labels of classification and tagging, in the order of the logits; empty for other tasks."""
    digest: str
    """SHA-256 of the graph that computes the answers, hexadecimal."""
    manifest_json: str = field(repr=False)
    state: str = ""
    """`loading`, `ready`, `failed`, or `stale`: the directory changed and cannot be loaded, so its earlier content
    answers. Empty if the server does not report it."""
    error: str = ""
    """Why its directory cannot be loaded; empty if it can."""
    engine: str = ""
    """Library that runs the graph, such as `onnxruntime`. Empty if it is not loaded, or if the server does not report
    it."""
    space: str = ""
    """Space of the vectors: those of equal spaces can be compared, whatever the name, version and precision of the
    model. Empty if it is not known, and for tasks without vectors."""

    @property
    def manifest(self) -> dict[str, Any]:
        """Manifest: provenance, text handling, scores before and after quantisation."""
        return json.loads(self.manifest_json or "{}")

    def int8_scales(self, dimensions: int | None = None) -> list[float]:
        """Return the scale of each dimension of int8 vectors: stored number x scale = original number.

        Args:
            dimensions: `dimensions` of the request; None for all.

        Raises:
            ValueError: if the model has no scales, or not so many dimensions.
            TypeError: if `dimensions` is not a whole number.
        """
        small = self.manifest.get("small_vectors")
        if not small:
            raise ValueError(f"`{self.name}/{self.version}` has no scales for int8")
        scales = small["scales"]
        kept = read_count("dimensions", dimensions) or len(scales)
        if kept > len(scales):
            raise ValueError(f"`dimensions` must be at most {len(scales)}, the model's: `{dimensions}`")
        return [scale / small["lengths"][kept - 1] for scale in scales[:kept]]

    @property
    def multi_label(self) -> bool:
        """True for multi-label classification: a text has any number of labels."""
        settings = self.manifest.get("settings")
        return isinstance(settings, dict) and settings.get("problem_type") == "multi_label_classification"
