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
    POOLING_MAX: _ClassVar[Pooling]
    POOLING_MEAN_SQRT_LEN_TOKENS: _ClassVar[Pooling]
    POOLING_WEIGHTEDMEAN: _ClassVar[Pooling]
    POOLING_LASTTOKEN: _ClassVar[Pooling]

class InputType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    INPUT_TYPE_UNSPECIFIED: _ClassVar[InputType]
    INPUT_TYPE_QUERY: _ClassVar[InputType]
    INPUT_TYPE_DOCUMENT: _ClassVar[InputType]

class VectorFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VECTOR_FORMAT_UNSPECIFIED: _ClassVar[VectorFormat]
    VECTOR_FORMAT_FLOAT16: _ClassVar[VectorFormat]
    VECTOR_FORMAT_INT8: _ClassVar[VectorFormat]
    VECTOR_FORMAT_BINARY: _ClassVar[VectorFormat]

class ProblemType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PROBLEM_TYPE_UNSPECIFIED: _ClassVar[ProblemType]
    PROBLEM_TYPE_SINGLE_LABEL: _ClassVar[ProblemType]
    PROBLEM_TYPE_MULTI_LABEL: _ClassVar[ProblemType]

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
POOLING_MAX: Pooling
POOLING_MEAN_SQRT_LEN_TOKENS: Pooling
POOLING_WEIGHTEDMEAN: Pooling
POOLING_LASTTOKEN: Pooling
INPUT_TYPE_UNSPECIFIED: InputType
INPUT_TYPE_QUERY: InputType
INPUT_TYPE_DOCUMENT: InputType
VECTOR_FORMAT_UNSPECIFIED: VectorFormat
VECTOR_FORMAT_FLOAT16: VectorFormat
VECTOR_FORMAT_INT8: VectorFormat
VECTOR_FORMAT_BINARY: VectorFormat
PROBLEM_TYPE_UNSPECIFIED: ProblemType
PROBLEM_TYPE_SINGLE_LABEL: ProblemType
PROBLEM_TYPE_MULTI_LABEL: ProblemType
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_STALE: ModelState
MODEL_STATE_FAILED: ModelState

class ModelRef(_message.Message):
    __slots__ = ("name", "version", "space")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SPACE_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    space: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., space: _Optional[str] = ...) -> None: ...

class TextInput(_message.Message):
    __slots__ = ("text", "text_pair")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TEXT_PAIR_FIELD_NUMBER: _ClassVar[int]
    text: str
    text_pair: str
    def __init__(self, text: _Optional[str] = ..., text_pair: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("tokenize_s", "queue_s", "inference_s")
    TOKENIZE_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    INFERENCE_S_FIELD_NUMBER: _ClassVar[int]
    tokenize_s: float
    queue_s: float
    inference_s: float
    def __init__(self, tokenize_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., inference_s: _Optional[float] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "texts", "truncate", "pooling", "normalize", "dimensions", "windows", "window_stride", "prompt_name", "input_type", "format")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    WINDOWS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_STRIDE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    pooling: Pooling
    normalize: bool
    dimensions: int
    windows: bool
    window_stride: int
    prompt_name: str
    input_type: InputType
    format: VectorFormat
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., truncate: _Optional[bool] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: _Optional[bool] = ..., dimensions: _Optional[int] = ..., windows: _Optional[bool] = ..., window_stride: _Optional[int] = ..., prompt_name: _Optional[str] = ..., input_type: _Optional[_Union[InputType, str]] = ..., format: _Optional[_Union[VectorFormat, str]] = ...) -> None: ...

class EmbedReply(_message.Message):
    __slots__ = ("model", "vectors", "dim", "num_tokens", "num_truncated", "num_windows", "timings", "format")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    vectors: bytes
    dim: int
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    num_windows: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    format: VectorFormat
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., vectors: _Optional[bytes] = ..., dim: _Optional[int] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., num_windows: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., format: _Optional[_Union[VectorFormat, str]] = ...) -> None: ...

class EmbedSparseRequest(_message.Message):
    __slots__ = ("model", "texts", "truncate", "top_k", "return_tokens", "prompt_name", "input_type")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    top_k: int
    return_tokens: bool
    prompt_name: str
    input_type: InputType
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., truncate: _Optional[bool] = ..., top_k: _Optional[int] = ..., return_tokens: _Optional[bool] = ..., prompt_name: _Optional[str] = ..., input_type: _Optional[_Union[InputType, str]] = ...) -> None: ...

class SparseVector(_message.Message):
    __slots__ = ("indices", "values", "tokens")
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ..., tokens: _Optional[_Iterable[str]] = ...) -> None: ...

class EmbedSparseReply(_message.Message):
    __slots__ = ("model", "results", "dim", "num_tokens", "num_truncated", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[SparseVector]
    dim: int
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[SparseVector, _Mapping]]] = ..., dim: _Optional[int] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class EmbedTokensRequest(_message.Message):
    __slots__ = ("model", "texts", "truncate", "input_type", "prompt_name", "format", "return_offsets")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    INPUT_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_NAME_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    RETURN_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    input_type: InputType
    prompt_name: str
    format: VectorFormat
    return_offsets: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., truncate: _Optional[bool] = ..., input_type: _Optional[_Union[InputType, str]] = ..., prompt_name: _Optional[str] = ..., format: _Optional[_Union[VectorFormat, str]] = ..., return_offsets: _Optional[bool] = ...) -> None: ...

class TokenVectors(_message.Message):
    __slots__ = ("vectors", "starts", "ends")
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    vectors: bytes
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, vectors: _Optional[bytes] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedTokensReply(_message.Message):
    __slots__ = ("model", "results", "dim", "format", "num_tokens", "num_truncated", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[TokenVectors]
    dim: int
    format: VectorFormat
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[TokenVectors, _Mapping]]] = ..., dim: _Optional[int] = ..., format: _Optional[_Union[VectorFormat, str]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate", "top_k")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[TextInput]
    truncate: bool
    top_k: int
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[TextInput, _Mapping]]] = ..., truncate: _Optional[bool] = ..., top_k: _Optional[int] = ...) -> None: ...

class LabelScore(_message.Message):
    __slots__ = ("label", "score", "selected")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    label: str
    score: float
    selected: bool
    def __init__(self, label: _Optional[str] = ..., score: _Optional[float] = ..., selected: _Optional[bool] = ...) -> None: ...

class Classification(_message.Message):
    __slots__ = ("labels",)
    LABELS_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedCompositeFieldContainer[LabelScore]
    def __init__(self, labels: _Optional[_Iterable[_Union[LabelScore, _Mapping]]] = ...) -> None: ...

class ClassifyReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "timings", "problem_type")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_TYPE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[Classification]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    problem_type: ProblemType
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., problem_type: _Optional[_Union[ProblemType, str]] = ...) -> None: ...

class RegressRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[TextInput]
    truncate: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[TextInput, _Mapping]]] = ..., truncate: _Optional[bool] = ...) -> None: ...

class RegressReply(_message.Message):
    __slots__ = ("model", "values", "num_tokens", "num_truncated", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    values: _containers.RepeatedScalarFieldContainer[float]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., values: _Optional[_Iterable[float]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ChooseInput(_message.Message):
    __slots__ = ("context", "question", "choices")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CHOICES_FIELD_NUMBER: _ClassVar[int]
    context: str
    question: str
    choices: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, context: _Optional[str] = ..., question: _Optional[str] = ..., choices: _Optional[_Iterable[str]] = ...) -> None: ...

class ChooseRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[ChooseInput]
    truncate: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[ChooseInput, _Mapping]]] = ..., truncate: _Optional[bool] = ...) -> None: ...

class ChooseResult(_message.Message):
    __slots__ = ("choice", "scores")
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    choice: int
    scores: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, choice: _Optional[int] = ..., scores: _Optional[_Iterable[float]] = ...) -> None: ...

class ChooseReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[ChooseResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[ChooseResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class AnswerInput(_message.Message):
    __slots__ = ("question", "contexts")
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    CONTEXTS_FIELD_NUMBER: _ClassVar[int]
    question: str
    contexts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, question: _Optional[str] = ..., contexts: _Optional[_Iterable[str]] = ...) -> None: ...

class AnswerRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate", "top_k")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[AnswerInput]
    truncate: bool
    top_k: int
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[AnswerInput, _Mapping]]] = ..., truncate: _Optional[bool] = ..., top_k: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("start", "end", "text", "score", "context")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    text: str
    score: float
    context: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., context: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "num_windows", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[AnswerResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    num_windows: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[AnswerResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., num_windows: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class TagInput(_message.Message):
    __slots__ = ("text", "words")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    text: str
    words: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, text: _Optional[str] = ..., words: _Optional[_Iterable[str]] = ...) -> None: ...

class TagRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate", "return_words")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RETURN_WORDS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[TagInput]
    truncate: bool
    return_words: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[TagInput, _Mapping]]] = ..., truncate: _Optional[bool] = ..., return_words: _Optional[bool] = ...) -> None: ...

class Entity(_message.Message):
    __slots__ = ("start", "end", "text", "label", "score")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    text: str
    label: str
    score: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., text: _Optional[str] = ..., label: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class TaggedWord(_message.Message):
    __slots__ = ("start", "end", "tag", "score")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    tag: str
    score: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., tag: _Optional[str] = ..., score: _Optional[float] = ...) -> None: ...

class TagResult(_message.Message):
    __slots__ = ("entities", "words")
    ENTITIES_FIELD_NUMBER: _ClassVar[int]
    WORDS_FIELD_NUMBER: _ClassVar[int]
    entities: _containers.RepeatedCompositeFieldContainer[Entity]
    words: _containers.RepeatedCompositeFieldContainer[TaggedWord]
    def __init__(self, entities: _Optional[_Iterable[_Union[Entity, _Mapping]]] = ..., words: _Optional[_Iterable[_Union[TaggedWord, _Mapping]]] = ...) -> None: ...

class TagReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "num_windows", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[TagResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    num_windows: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[TagResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., num_windows: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class FillMaskRequest(_message.Message):
    __slots__ = ("model", "texts", "truncate", "top_k", "targets")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    truncate: bool
    top_k: int
    targets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., truncate: _Optional[bool] = ..., top_k: _Optional[int] = ..., targets: _Optional[_Iterable[str]] = ...) -> None: ...

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
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[FillMaskResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[FillMaskResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class RerankInput(_message.Message):
    __slots__ = ("query", "documents")
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    query: str
    documents: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, query: _Optional[str] = ..., documents: _Optional[_Iterable[str]] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("model", "inputs", "truncate", "top_n", "label", "raw_scores", "best_effort")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    RAW_SCORES_FIELD_NUMBER: _ClassVar[int]
    BEST_EFFORT_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[RerankInput]
    truncate: bool
    top_n: int
    label: str
    raw_scores: bool
    best_effort: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[RerankInput, _Mapping]]] = ..., truncate: _Optional[bool] = ..., top_n: _Optional[int] = ..., label: _Optional[str] = ..., raw_scores: _Optional[bool] = ..., best_effort: _Optional[bool] = ...) -> None: ...

class RankedDocument(_message.Message):
    __slots__ = ("document", "score")
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    document: int
    score: float
    def __init__(self, document: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...

class RerankResult(_message.Message):
    __slots__ = ("documents", "num_scored")
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    NUM_SCORED_FIELD_NUMBER: _ClassVar[int]
    documents: _containers.RepeatedCompositeFieldContainer[RankedDocument]
    num_scored: int
    def __init__(self, documents: _Optional[_Iterable[_Union[RankedDocument, _Mapping]]] = ..., num_scored: _Optional[int] = ...) -> None: ...

class RerankReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "num_windows", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    NUM_WINDOWS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[RerankResult]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    num_windows: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[RerankResult, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., num_windows: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ZeroShotRequest(_message.Message):
    __slots__ = ("model", "texts", "labels", "template", "multi_label", "truncate", "top_k")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    MULTI_LABEL_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    texts: _containers.RepeatedScalarFieldContainer[str]
    labels: _containers.RepeatedScalarFieldContainer[str]
    template: str
    multi_label: bool
    truncate: bool
    top_k: int
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., texts: _Optional[_Iterable[str]] = ..., labels: _Optional[_Iterable[str]] = ..., template: _Optional[str] = ..., multi_label: _Optional[bool] = ..., truncate: _Optional[bool] = ..., top_k: _Optional[int] = ...) -> None: ...

class ZeroShotReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "num_truncated", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[Classification]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    num_truncated: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[Classification, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., num_truncated: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "inputs")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    inputs: _containers.RepeatedCompositeFieldContainer[TextInput]
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., inputs: _Optional[_Iterable[_Union[TextInput, _Mapping]]] = ...) -> None: ...

class TokenizedInput(_message.Message):
    __slots__ = ("ids", "tokens", "starts", "ends", "type_ids", "special")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    TYPE_IDS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[str]
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    type_ids: _containers.RepeatedScalarFieldContainer[int]
    special: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[str]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., type_ids: _Optional[_Iterable[int]] = ..., special: _Optional[_Iterable[bool]] = ...) -> None: ...

class TokenizeReply(_message.Message):
    __slots__ = ("model", "results", "num_tokens", "timings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    results: _containers.RepeatedCompositeFieldContainer[TokenizedInput]
    num_tokens: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., results: _Optional[_Iterable[_Union[TokenizedInput, _Mapping]]] = ..., num_tokens: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ...) -> None: ...

class ModelInfo(_message.Message):
    __slots__ = ("model", "task", "precision", "max_seq_length", "dim", "labels", "digest", "manifest_json", "state", "error", "engine")
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
    ENGINE_FIELD_NUMBER: _ClassVar[int]
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
    engine: str
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., task: _Optional[str] = ..., precision: _Optional[str] = ..., max_seq_length: _Optional[int] = ..., dim: _Optional[int] = ..., labels: _Optional[_Iterable[str]] = ..., digest: _Optional[str] = ..., manifest_json: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., error: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class ListModelsReply(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelInfo]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelInfo, _Mapping]]] = ...) -> None: ...
