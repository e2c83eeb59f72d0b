"""Answers of a fake server: valid and deterministic, but without meaning. Refusals of invalid inputs."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertline.testing._faults import Refusal
from bertline.testing._models import VOCABULARY_SIZE, FakeModel
from bertline.v1 import encoder_pb2 as pb

_TIMINGS = pb.Timings(tokenize_s=2**-10, queue_s=2**-9, inference_s=2**-8)  # exact as floats
_ANY_LENGTH = ("Answer", "Rerank", "Tag", "Tokenize")
"""RPCs that accept texts of any length."""
_NECESSARY = {"Classify": ".text", "Regress": ".text", "Answer": ".question", "Rerank": ".query"}
"""Text that an input must have, where others are optional."""
_TOKEN = re.compile(r"\[MASK\]|\w+|[^\w\s]")


def vector(text: str, dim: int = 8) -> np.ndarray:
    """Return the vector of a text: [dim] float32 of length 1."""
    values = _uniform(text, dim) * 2 - 1
    return (values / np.linalg.norm(values)).astype("<f4")


def _uniform(text: str, count: int) -> np.ndarray:
    """Return [count] float64 in [0, 1), derived from a text."""
    return np.frombuffer(hashlib.shake_256(text.encode()).digest(4 * count), dtype="<u4") / 2**32


def _score(text: str) -> float:
    return float(_uniform(text, 1)[0])


def _probabilities(texts: Sequence[str]) -> np.ndarray:
    """Return probabilities, [texts] float64, that sum to 1."""
    weights = np.array([_score(text) + 1e-3 for text in texts])
    return weights / weights.sum()


def tokens(text: str) -> list[re.Match[str]]:
    """Split a text into words and punctuation marks."""
    return list(_TOKEN.finditer(text))


def _token_id(token: str) -> int:
    return int(_score(token) * VOCABULARY_SIZE)


def _prompt(model: FakeModel, request: Any) -> str:
    """Return the prompt that a request names, or the default prompt of the model's manifest.

    Raises:
        Refusal: if the model has no such prompt.
    """
    settings = model.manifest.get("settings", {})
    prompts, name = settings.get("prompts", {}), settings.get("default_prompt_name")
    if request.HasField("prompt_name"):
        name = request.prompt_name
    elif request.input_type:
        kinds = ("query",) if request.input_type == pb.INPUT_TYPE_QUERY else ("document", "passage", "corpus")
        name = next((item for item in kinds if item in prompts), "")
    if name and name not in prompts:
        known = ", ".join(prompts) or "none"
        reason = f"unknown prompt: `{name}` (prompts of this model: {known})"
        raise Refusal("INVALID_ARGUMENT", f"prompt_name: {reason}", [("prompt_name", reason)])
    return str(prompts[name]) if name else ""


# ---- result of one input, by RPC


def _embed(model: FakeModel, request: pb.EmbedRequest, text: str) -> bytes:
    found = vector(_prompt(model, request) + text, model.dim)
    if request.dimensions:
        found = found[: request.dimensions]
        found = found / np.linalg.norm(found)
    if request.format == pb.VECTOR_FORMAT_BINARY:
        return np.packbits(found > 0).tobytes()
    if request.format == pb.VECTOR_FORMAT_INT8:
        return np.rint(found * 127).astype("i1").tobytes()
    return found.astype("<f2" if request.format == pb.VECTOR_FORMAT_FLOAT16 else "<f4").tobytes()


def _embed_sparse(model: FakeModel, request: pb.EmbedSparseRequest, text: str) -> pb.SparseVector:
    found = {_token_id(match[0]): match[0] for match in tokens(_prompt(model, request) + text)}
    weights = {number: np.float32(_score(f"weight of {token}") + 0.5) for number, token in found.items()}
    kept = sorted(weights, key=lambda number: (-weights[number], number))[: request.top_k or None]
    names = [found[number] for number in kept] if request.return_tokens else []
    return pb.SparseVector(indices=kept, values=[float(weights[number]) for number in kept], tokens=names)


def _embed_tokens(model: FakeModel, request: pb.EmbedTokensRequest, text: str) -> pb.TokenVectors:
    prompt, is_query = _prompt(model, request), request.input_type == pb.INPUT_TYPE_QUERY
    found = [token for token in tokens(prompt + text) if is_query or token[0][0].isalnum() or token[0] == "[MASK]"]
    names = ["[CLS]", *(token[0] for token in found), "[SEP]"]
    kind = "<f2" if request.format == pb.VECTOR_FORMAT_FLOAT16 else "<f4"
    result = pb.TokenVectors(vectors=np.array([vector(name, model.dim) for name in names]).astype(kind).tobytes())
    if request.return_offsets:
        places = [(0, 0), *(token.span() for token in found), (0, 0)]
        result.starts.extend(max(0, start - len(prompt)) for start, _ in places)
        result.ends.extend(max(0, end - len(prompt)) for _, end in places)
    return result


def _classify(model: FakeModel, request: pb.ClassifyRequest, item: Any) -> pb.Classification:
    text = f"{item.text} {item.text_pair}"
    return _classification(model.labels_of("classification"), text, request.top_k, several=model.multi_label)


def _classification(names: Sequence[str], text: str, top_k: int, *, several: bool) -> pb.Classification:
    """Return labels for a text: `top_k` (0 for all), and the selected ones; `several` is true with any number."""
    texts = [f"{name} {text}" for name in names]
    scores = list(map(_score, texts)) if several else _probabilities(texts).tolist()
    ranked = sorted(zip(names, scores, strict=True), key=lambda pair: -pair[1])
    labels = [
        pb.LabelScore(label=name, score=score, selected=score >= 0.5 if several else not rank)
        for rank, (name, score) in enumerate(ranked)
    ]
    count = top_k or len(labels)
    return pb.Classification(labels=[label for rank, label in enumerate(labels) if rank < count or label.selected])


def _zero_shot(model: FakeModel, request: pb.ZeroShotRequest, text: str) -> pb.Classification:
    return _classification(request.labels, f"{request.template} {text}", request.top_k, several=request.multi_label)


def _regress(model: FakeModel, request: pb.RegressRequest, item: Any) -> float:
    return _score(f"{item.text} {item.text_pair}")


def _choose(model: FakeModel, request: pb.ChooseRequest, item: pb.ChooseInput) -> pb.ChooseResult:
    scores = _probabilities([f"{item.context} {item.question} {choice}" for choice in item.choices])
    return pb.ChooseResult(choice=int(scores.argmax()), scores=scores)


def _answer(model: FakeModel, request: pb.AnswerRequest, item: pb.AnswerInput) -> pb.AnswerResult:
    """Return the places of the question's last word in the contexts, or no answer."""
    words = [match[0] for match in tokens(item.question) if match[0].isalnum()]
    places = [(number, match) for number, context in enumerate(item.contexts) for match in tokens(context)]
    found = [(number, match) for number, match in places if match[0] in words[-1:]]
    spans = [
        pb.Span(start=match.start(), end=match.end(), text=match[0], score=0.75 * 0.5**rank, context=number)
        for rank, (number, match) in enumerate(found[: request.top_k or 1])
    ]
    return pb.AnswerResult(spans=spans, has_answer=bool(found), no_answer_score=0.125 if found else 0.875)


def _rerank(model: FakeModel, request: pb.RerankRequest, item: pb.RerankInput) -> pb.RerankResult:
    scores = [float(np.float32(_score(f"{item.query} {document}"))) for document in item.documents]
    order = sorted(range(len(scores)), key=lambda number: -scores[number])[: request.top_n or None]
    documents = [pb.RankedDocument(document=number, score=scores[number]) for number in order]
    return pb.RerankResult(documents=documents, num_scored=len(scores) if request.best_effort else 0)


def _tag(model: FakeModel, request: pb.TagRequest, item: pb.TagInput) -> pb.TagResult:
    kinds = sorted({label[2:] for label in model.labels_of("tagging") if label[:2] == "B-"}) or ["MISC"]
    result = pb.TagResult()
    for match in tokens(item.text or " ".join(item.words)):
        place = {"start": match.start(), "end": match.end()}
        kind = kinds[int(_score(match[0]) * len(kinds))] if match[0][0].isupper() else ""
        if kind:
            result.entities.add(**place, text=match[0], label=kind, score=0.75)
        if request.return_words:
            result.words.add(**place, tag=f"B-{kind}" if kind else "O", score=0.75)
    return result


def _fill_mask(model: FakeModel, request: pb.FillMaskRequest, text: str) -> pb.FillMaskResult:
    """Return `wordN`, `wordN+1`, ... for each [MASK], with N derived from the text and the position of the [MASK]."""
    result = pb.FillMaskResult()
    targets = [pb.TokenScore(token=name, score=_score(f"{text} {name}")) for name in request.targets]
    for place in range(sum(token[0] == "[MASK]" for token in tokens(text)[: model.max_seq_length - 2])):
        first = int(_score(f"{text} {place}") * VOCABULARY_SIZE)
        names = [f"word{(first + rank) % VOCABULARY_SIZE}" for rank in range(request.top_k or 5)]
        found = [pb.TokenScore(token=name, score=0.5 ** (rank + 1)) for rank, name in enumerate(names)]
        result.masks.add(tokens=found, targets=targets)
    return result


def _tokenize(model: FakeModel, request: pb.TokenizeRequest, item: Any) -> pb.TokenizedInput:
    result = pb.TokenizedInput()
    special, found = (0, 0), [("[CLS]", 0, (0, 0))]
    for number, text in enumerate([item.text, item.text_pair] if item.HasField("text_pair") else [item.text]):
        found += [(match[0], number, match.span()) for match in tokens(text)]
        found.append(("[SEP]", number, special))
    for token, number, (start, end) in found:
        result.ids.append(_token_id(token))
        result.tokens.append(token)
        result.starts.append(start)
        result.ends.append(end)
        result.type_ids.append(number)
        result.special.append((start, end) == special)
    return result


RESULTS: dict[str, Callable[[FakeModel, Any, Any], Any]] = {
    "Embed": _embed,
    "EmbedSparse": _embed_sparse,
    "EmbedTokens": _embed_tokens,
    "Classify": _classify,
    "Regress": _regress,
    "Choose": _choose,
    "Answer": _answer,
    "Rerank": _rerank,
    "Tag": _tag,
    "FillMask": _fill_mask,
    "ZeroShot": _zero_shot,
    "Tokenize": _tokenize,
}
"""Result of an input of each RPC, except ListModels and GetModel."""


def answer(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> Any:
    """Return the reply to a request.

    Args:
        method: name of the RPC.
        request: message of the call.
        model: model that reads it.
        refused: texts to refuse, with the reason.

    Raises:
        Refusal: with all violations: empty texts, texts that are too long, and those to refuse.
    """
    num_tokens, num_truncated = _check(method, request, model, refused)
    results = [RESULTS[method](model, request, item) for item in getattr(request, _inputs_field(request))]
    reply = getattr(pb, f"{method}Reply")(model=model.ref, timings=_TIMINGS)
    if method == "Embed":
        reply.vectors = b"".join(results)
    else:
        getattr(reply, "values" if method == "Regress" else "results").extend(results)
    if method == "Tokenize":
        reply.num_tokens.extend(len(result.ids) for result in results)
        return reply
    reply.num_tokens[:], reply.num_truncated[:] = num_tokens, num_truncated
    if method == "Classify":
        reply.problem_type = f"PROBLEM_TYPE_{'MULTI' if model.multi_label else 'SINGLE'}_LABEL"
    elif method == "EmbedSparse":
        reply.dim = VOCABULARY_SIZE
    elif method in ("Embed", "EmbedTokens"):
        reply.format, dim = request.format, method == "Embed" and request.dimensions
        reply.dim = min(dim or model.dim, model.dim) if results else 0
    return reply


def _inputs_field(request: Any) -> str:
    return "texts" if hasattr(request, "texts") else "inputs"


def _check(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Refuse invalid texts. Return for each input the number of tokens that are read, and of those truncated."""
    any_length = method in _ANY_LENGTH or (method == "Embed" and request.windows)
    limit = sys.maxsize if any_length else model.max_seq_length
    truncates = model.manifest.get("truncate", False)
    if method != "Tokenize" and request.HasField("truncate"):
        truncates = request.truncate
    name = _inputs_field(request)
    violations, read, cut = list[tuple[str, str]](), list[int](), list[int]()
    for index, item in enumerate(getattr(request, name)):
        texts = _texts(method, item)
        lengths = _lengths(texts)
        cut.append(sum(max(0, length - limit) for length in lengths))
        read.append(sum(lengths) - cut[-1])
        invalid = {path: refused[text] for path, text in texts.items() if text in refused}
        if not invalid and method != "Tokenize":
            invalid = {
                path: "empty text; it needs at least one word" for path, text in texts.items() if not text.strip()
            }
            if cut[-1] and not truncates:
                longest = max(texts, key=lambda path: len(tokens(texts[path])))
                invalid[longest] = f"text too long: `{max(lengths)}` tokens (maximum `{limit}`)"
        violations += [(f"{name}[{index}]{path}", reason) for path, reason in invalid.items()]
    if violations:
        details = "; ".join(f"{field}: {reason}" for field, reason in violations[:3])
        raise Refusal("INVALID_ARGUMENT", details, violations)
    return read, cut


def _lengths(texts: Mapping[str, str]) -> list[int]:
    """Return the number of tokens of each sequence: one for each text of a list, such as choices, with all others."""
    shared = 2 + sum(len(tokens(text)) for path, text in texts.items() if "[" not in path)
    return [shared + len(tokens(text)) for path, text in texts.items() if "[" in path] or [shared]


def _texts(method: str, item: Any) -> dict[str, str]:
    """Return the texts of an input by their path: the necessary one, and the others that are set."""
    if isinstance(item, str):
        return {"": item}
    if method == "Tag":
        return {".words": " ".join(item.words)} if item.words else {".text": item.text}
    found = {_NECESSARY[method]: ""} if method in _NECESSARY else {}
    for field, value in item.ListFields():
        values = {"": value} if isinstance(value, str) else {f"[{number}]": text for number, text in enumerate(value)}
        found.update({f".{field.name}{number}": text for number, text in values.items()})
    return found
