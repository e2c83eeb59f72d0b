"""What the methods of the client return."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class LabelScore:
    """A label with its probability."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Classification:
    """Labels of the model for one text or pair, likeliest first; the scores of all of them sum to 1."""

    labels: tuple[LabelScore, ...]

    @property
    def label(self) -> str:
        """The likeliest label."""
        return self.labels[0].label

    @property
    def score(self) -> float:
        """Probability of the likeliest label."""
        return self.labels[0].score


@dataclass(frozen=True, slots=True)
class Choice:
    """Which of several choices fits."""

    choice: int
    """Number of the likeliest, from 0."""
    scores: tuple[float, ...]
    """Probabilities in the order of the choices, which sum to 1."""

    @property
    def score(self) -> float:
        """Probability of the likeliest choice."""
        return self.scores[self.choice]


@dataclass(frozen=True, slots=True)
class Entity:
    """text[start:end], what kind of thing it is, and the mean probability of its words' tags."""

    start: int
    end: int
    text: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class TaggedWord:
    """A word text[start:end] with its tag, as `B-LOC` or `O`, and the tag's probability."""

    start: int
    end: int
    tag: str
    score: float


@dataclass(frozen=True, slots=True)
class Tagging:
    """The entities of one text, in its order. Offsets are code points, as in Python."""

    entities: tuple[Entity, ...]
    words: tuple[TaggedWord, ...]
    """All words, where they were asked for; of words that were given, with one space between them."""


@dataclass(frozen=True, slots=True)
class Span:
    """contexts[context][start:end] with its probability among the candidates. Offsets are code points, as in Python."""

    start: int
    end: int
    text: str
    score: float
    context: int = 0
    """Number of the context, of several."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The spans of one or several contexts that may answer one question."""

    spans: tuple[Span, ...]
    """Best first. Without an answer these are the spans that lost against "no answer"."""
    has_answer: bool
    """False when the model judges that no context answers the question."""
    no_answer_score: float
    """Probability of "no answer"; 0 where the model does not know unanswerable questions."""

    @property
    def text(self) -> str:
        """The answer, empty for "no answer"."""
        return self.spans[0].text if self.has_answer else ""

    @property
    def score(self) -> float:
        """Probability of the answer, or of "no answer"."""
        return self.spans[0].score if self.has_answer else self.no_answer_score


@dataclass(frozen=True, slots=True)
class TokenScore:
    """A token with its probability over the whole vocabulary."""

    token: str
    score: float


@dataclass(frozen=True, slots=True)
class MaskFill:
    """What fits at one [MASK]."""

    tokens: tuple[TokenScore, ...]
    """Likeliest first."""
    targets: tuple[TokenScore, ...]
    """The `targets` that were asked for, in their order."""


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The tokens of one text, or pair, with [CLS] and [SEP]."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]
    """Each token stands for text[start:end], of the second text where its type is 1."""
    type_ids: tuple[int, ...]
    """0 for the text, 1 for the second text of a pair."""
    special: tuple[bool, ...]
    """Which tokens were added: [CLS] and [SEP]."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went at the server, in seconds."""

    tokenize_s: float
    queue_s: float
    inference_s: float


@dataclass(slots=True)
class Usage:
    """What a call took: give an empty one to a method, which adds to it, unless the call fails."""

    num_tokens: list[int] = field(default_factory=list)
    """For each input, the tokens that the model saw."""
    num_truncated: list[int] = field(default_factory=list)
    """For each input, the tokens that were cut away since they did not fit; see `truncate`. The end of a very long
    text, which is cut before it is tokenised, counts as one."""
    timings: list[Timings] = field(default_factory=list)
    """For each request that the call was sent as."""

    @property
    def truncated(self) -> list[int]:
        """Positions of the inputs of which something was cut away."""
        return [index for index, count in enumerate(self.num_truncated) if count]


@dataclass(frozen=True, slots=True)
class Model:
    """A version of a model, loaded or not; of one that is not, only name, version, state and error are known."""

    name: str
    version: str
    task: str
    """`embedding`, `classification`, `regression`, `multiple-choice`, `spans`, `tagging` or `masked-lm`."""
    precision: str
    """`fp32`, `fp16` or `int8`."""
    max_seq_length: int
    """Longest sequence, in tokens."""
    dim: int
    """Length of the vectors; 0 for other tasks than embedding."""
    labels: tuple[str, ...]
    """In the order of the logits, of classification and tagging; empty for other tasks."""
    digest: str
    """SHA-256 of model.onnx, hexadecimal."""
    manifest_json: str = field(repr=False)
    state: str = ""
    """`loading`, `ready`, `stale` (what its directory held before answers) or `failed`; empty where the server does not
    say."""
    error: str = ""
    """Why what lies in its directory cannot be loaded; empty where it can."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest: provenance, text handling, scores before and after quantisation."""
        return json.loads(self.manifest_json or "{}")
