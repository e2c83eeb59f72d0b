from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_CLS: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_STALE: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
POOLING_UNSPECIFIED: Pooling
POOLING_CLS: Pooling
POOLING_MEAN: Pooling
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_STALE: ModelState
MODEL_STATE_FAILED: ModelState

class ModelRef(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "texts", "pooling", "normalize", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    pooling: Pooling
    normalize: bool
    truncate: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: _Optional[bool] = ..., truncate: _Optional[bool] = ...) -> None: ...

class EmbedReply(_message.Message):
    __slots__ = ("model", "vectors", "dim", "num_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    vectors: bytes
    dim: int
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., vectors: _Optional[bytes] = ..., dim: _Optional[int] = ..., num_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class ClassifyInput(_message.Message):
    __slots__ = ("text", "text_pair")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIR_FIELD_NUMBER: _ClassVar[int]
    text: str
    text_pair: str
    def __init__(self, text: _Optional[str] = ..., text_pair: _Optional[str] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[ClassifyInput]
    truncate: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[ClassifyInput, _Mapping]]] = ..., truncate: _Optional[bool] = ...) -> None: ...

class LabelScore(_message.Message):
    __slots__ = ("label", "score")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[LabelScore]
    def __init__(self, labels: _Optional[_Iterable[_Union[LabelScore, _Mapping]]] = ...) -> None: ...

class ClassifyReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[Classification]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class AnswerInput(_message.Message):
    __slots__ = ("question", "context")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    question: str
    context: str
    def __init__(self, question: _Optional[str] = ..., context: _Optional[str] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("model", "inputs", "top_k", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[AnswerInput]
    top_k: int
    truncate: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[AnswerInput, _Mapping]]] = ..., top_k: _Optional[int] = ..., truncate: _Optional[bool] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end", "text", "score")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    text: str
    score: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., text: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class AnswerResult(_message.Message):
    __slots__ = ("spans", "has_answer", "no_answer_score")
    SPANS_FIELD_NUMBER: _ClassVar[int]
    HAS_ANSWER_FIELD_NUMBER: _ClassVar[int]
    NO_ANSWER_SCORE_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    has_answer: bool
    no_answer_score: float
    def __init__(self, spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., has_answer: _Optional[bool] = ..., no_answer_score: _Optional[float] = ...) -> None: ...

class AnswerReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "num_windows")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[AnswerResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_windows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[AnswerResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_windows: _Optional[_Iterable[int]] = ...) -> None: ...

class FillMaskRequest(_message.Message):
    __slots__ = ("model", "texts", "top_k", "targets", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    top_k: int
    targets: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., top_k: _Optional[int] = ..., targets: _Optional[_Iterable[str]] = ..., truncate: _Optional[bool] = ...) -> None: ...

class TokenScore(_message.Message):
    __slots__ = ("token", "score")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    token: str
    score: float
    def __init__(self, token: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class MaskFill(_message.Message):
    __slots__ = ("tokens", "targets")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenScore]
    targets: _containers.RepeatedCompositeFieldContainer[TokenScore]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ..., targets: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ...) -> None: ...

class FillMaskResult(_message.Message):
    __slots__ = ("masks",)
    MASKS_FIELD_NUMBER: _ClassVar[int]
    masks: _containers.RepeatedCompositeFieldContainer[MaskFill]
    def __init__(self, masks: _Optional[_Iterable[_Union[MaskFill, _Mapping]]] = ...) -> None: ...

class FillMaskReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[FillMaskResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[FillMaskResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "task", "precision", "max_seq_length", "dim", "labels", "digest", "manifest_json", "state", "error")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQ_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    task: str
    precision: str
    max_seq_length: int
    dim: int
    labels: _containers.RepeatedScalarFieldContainer[str]
    digest: str
    manifest_json: str
    state: ModelState
    error: str
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., task: _Optional[str] = ..., precision: _Optional[str] = ..., max_seq_length: _Optional[int] = ..., dim: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., manifest_json: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., error: _Optional[str] = ...) -> None: ...

class ListModelsReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...
