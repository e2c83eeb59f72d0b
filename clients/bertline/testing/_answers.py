"""Answers of a fake server: valid and deterministic, but without meaning. Refusals of invalid inputs."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from bertline.testing._faults import Refusal
from bertline.testing._models import TASKS, VOCABULARY_SIZE, FakeModel
from bertline.v1 import encoder_pb2 as pb

TIMINGS = pb.Timings(tokenize_s=2**-10, queue_s=2**-9, inference_s=2**-8)  # exact as floats
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


def _probabilities(texts: Sequence[str]) -> np.ndarray:
    """Return probabilities, [texts] float64, that sum to 1."""
    weights = np.array([_uniform(text, 1)[0] + 1e-3 for text in texts])
    return weights / weights.sum()


def prompt_of(model: FakeModel, request: Any) -> str:
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


def token_id(token: str) -> int:
    """Return the id of a token."""
    return int(_uniform(token, 1)[0] * VOCABULARY_SIZE)


def tokens(text: str) -> list[re.Match[str]]:
    """Split a text into words and punctuation marks."""
    return list(_TOKEN.finditer(text))


def embed(model: FakeModel, request: pb.EmbedRequest) -> pb.EmbedReply:
    """Return the `vector` of each text after its prompt."""
    prompt = prompt_of(model, request)
    vectors = np.array([vector(prompt + text, model.dim) for text in request.texts], dtype="<f4").reshape(-1, model.dim)
    if request.dimensions:
        vectors = vectors[:, : request.dimensions]
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    dim = vectors.shape[1] if len(vectors) else 0
    reply = pb.EmbedReply(dim=dim, format=request.format)
    if request.format == pb.VECTOR_FORMAT_BINARY:
        reply.vectors = np.packbits(vectors > 0, axis=1).tobytes()
    elif request.format == pb.VECTOR_FORMAT_INT8:
        reply.vectors = np.rint(vectors * 127).astype("i1").tobytes()
    else:
        reply.vectors = vectors.astype("<f2" if request.format == pb.VECTOR_FORMAT_FLOAT16 else "<f4").tobytes()
    return reply


def embed_sparse(model: FakeModel, request: pb.EmbedSparseRequest) -> pb.EmbedSparseReply:
    """Return a weight for each different token of a text and its prompt, derived from the token."""
    prompt, reply = prompt_of(model, request), pb.EmbedSparseReply(dim=VOCABULARY_SIZE)
    for text in request.texts:
        found = {token_id(match[0]): match[0] for match in tokens(prompt + text)}
        weights = {number: np.float32(_uniform(f"weight of {token}", 1)[0] + 0.5) for number, token in found.items()}
        kept = sorted(weights, key=lambda number: (-weights[number], number))[: request.top_k or None]
        names = [found[number] for number in kept] if request.return_tokens else []
        reply.results.add(indices=kept, values=[weights[number] for number in kept], tokens=names)
    return reply


def embed_tokens(model: FakeModel, request: pb.EmbedTokensRequest) -> pb.EmbedTokensReply:
    """Return the `vector` of [CLS], [SEP] and each token of text and prompt, without a document's punctuation."""
    prompt, is_query = prompt_of(model, request), request.input_type == pb.INPUT_TYPE_QUERY
    reply = pb.EmbedTokensReply(dim=model.dim if request.texts else 0, format=request.format)
    kind = "<f2" if request.format == pb.VECTOR_FORMAT_FLOAT16 else "<f4"
    for text in request.texts:
        found = [token for token in tokens(prompt + text) if is_query or token[0][0].isalnum() or token[0] == "[MASK]"]
        names = ["[CLS]", *(token[0] for token in found), "[SEP]"]
        result = reply.results.add(vectors=np.array([vector(name, model.dim) for name in names]).astype(kind).tobytes())
        if request.return_offsets:
            places = [(0, 0), *(token.span() for token in found), (0, 0)]
            result.starts.extend(max(0, start - len(prompt)) for start, _ in places)
            result.ends.extend(max(0, end - len(prompt)) for _, end in places)
    return reply


def classify(model: FakeModel, request: pb.ClassifyRequest) -> pb.ClassifyReply:
    """Return all labels, with probabilities derived from the text; of a multi-label model, each from 0 to 1."""
    names, several = model.labels_for(TASKS["Classify"]), model.multi_label
    results = [
        _classification(names, f"{item.text} {item.text_pair}", request.top_k, several=several)
        for item in request.inputs
    ]
    kind = pb.PROBLEM_TYPE_MULTI_LABEL if several else pb.PROBLEM_TYPE_SINGLE_LABEL
    return pb.ClassifyReply(results=results, problem_type=kind)


def _classification(names: Sequence[str], text: str, top_k: int, *, several: bool) -> pb.Classification:
    """Return labels for a text: `top_k` (0 for all), and the selected ones; `several` is true with any number."""
    texts = [f"{name} {text}" for name in names]
    scores = [_uniform(text, 1)[0] for text in texts] if several else _probabilities(texts).tolist()
    ranked = sorted(zip(names, scores, strict=True), key=lambda pair: -pair[1])
    labels = [
        pb.LabelScore(label=name, score=score, selected=score >= 0.5 if several else not rank)
        for rank, (name, score) in enumerate(ranked)
    ]
    count = top_k or len(labels)
    return pb.Classification(labels=[label for rank, label in enumerate(labels) if rank < count or label.selected])


def zero_shot(model: FakeModel, request: pb.ZeroShotRequest) -> pb.ZeroShotReply:
    """Return the labels of the request, with probabilities derived from label and text."""
    return pb.ZeroShotReply(
        results=[
            _classification(request.labels, f"{request.template} {text}", request.top_k, several=request.multi_label)
            for text in request.texts
        ]
    )


def regress(model: FakeModel, request: pb.RegressRequest) -> pb.RegressReply:
    """Return a number from 0 to 1, derived from the text."""
    return pb.RegressReply(values=[_uniform(f"{item.text} {item.text_pair}", 1)[0] for item in request.inputs])


def choose(model: FakeModel, request: pb.ChooseRequest) -> pb.ChooseReply:
    """Return probabilities derived from context, question and choice."""
    results = []
    for item in request.inputs:
        scores = _probabilities([f"{item.context} {item.question} {choice}" for choice in item.choices])
        results.append(pb.ChooseResult(choice=int(scores.argmax()), scores=scores))
    return pb.ChooseReply(results=results)


def answer(model: FakeModel, request: pb.AnswerRequest) -> pb.AnswerReply:
    """Return the places of the question's last word in the contexts, or no answer."""
    results = []
    for item in request.inputs:
        words = [match[0] for match in tokens(item.question) if match[0].isalnum()]
        found = [
            pb.Span(start=match.start(), end=match.end(), text=match[0], score=0.75 * 0.5**rank, context=number)
            for rank, (number, match) in enumerate(
                (number, match)
                for number, context in enumerate(item.contexts)
                for match in tokens(context)
                if words and match[0] == words[-1]
            )
        ]
        no_answer_score = 0.125 if found else 0.875
        spans = found[: request.top_k or 1]
        results.append(pb.AnswerResult(spans=spans, has_answer=bool(found), no_answer_score=no_answer_score))
    return pb.AnswerReply(results=results)


def rerank(model: FakeModel, request: pb.RerankRequest) -> pb.RerankReply:
    """Return the documents ranked by a number from 0 to 1, derived from query and document."""
    results = []
    for item in request.inputs:
        scores = [float(np.float32(_uniform(f"{item.query} {document}", 1)[0])) for document in item.documents]
        order = sorted(range(len(scores)), key=lambda number: -scores[number])[: request.top_n or None]
        ranked = [pb.RankedDocument(document=number, score=scores[number]) for number in order]
        results.append(pb.RerankResult(documents=ranked))
    return pb.RerankReply(results=results)


def tag(model: FakeModel, request: pb.TagRequest) -> pb.TagReply:
    """Return words with a capital as entities, with a type derived from the word."""
    kinds = sorted({label[2:] for label in model.labels_for(TASKS["Tag"]) if label[:2] == "B-"}) or ["MISC"]
    results = []
    for item in request.inputs:
        result = pb.TagResult()
        for match in tokens(item.text or " ".join(item.words)):
            place = {"start": match.start(), "end": match.end()}
            kind = kinds[int(_uniform(match[0], 1)[0] * len(kinds))] if match[0][0].isupper() else ""
            if kind:
                result.entities.add(**place, text=match[0], label=kind, score=0.75)
            if request.return_words:
                result.words.add(**place, tag=f"B-{kind}" if kind else "O", score=0.75)
        results.append(result)
    return pb.TagReply(results=results)


def fill_mask(model: FakeModel, request: pb.FillMaskRequest) -> pb.FillMaskReply:
    """Return `wordN`, `wordN+1`, ... for each [MASK], with N derived from the text and the position of the [MASK]."""
    results = []
    for text in request.texts:
        masks = []
        fitting = tokens(text)[: model.max_seq_length - 2]
        for place in range(sum(token[0] == "[MASK]" for token in fitting)):
            first = int(_uniform(f"{text} {place}", 1)[0] * VOCABULARY_SIZE)
            names = [f"word{(first + rank) % VOCABULARY_SIZE}" for rank in range(request.top_k or 5)]
            targets = [pb.TokenScore(token=name, score=_uniform(f"{text} {name}", 1)[0]) for name in request.targets]
            found = [pb.TokenScore(token=name, score=0.5 ** (rank + 1)) for rank, name in enumerate(names)]
            masks.append(pb.MaskFill(tokens=found, targets=targets))
        results.append(pb.FillMaskResult(masks=masks))
    return pb.FillMaskReply(results=results)


def tokenize(model: FakeModel, request: pb.TokenizeRequest) -> pb.TokenizeReply:
    """Return one token per word and punctuation mark."""
    results = []
    for item in request.inputs:
        result = pb.TokenizedInput()
        _add_token(result, "[CLS]", 0)
        for type_id, text in enumerate([item.text, item.text_pair] if item.HasField("text_pair") else [item.text]):
            for match in tokens(text):
                _add_token(result, match[0], type_id, match.span())
            _add_token(result, "[SEP]", type_id)
        results.append(result)
    return pb.TokenizeReply(results=results, num_tokens=[len(result.ids) for result in results])


def _add_token(result: Any, token: str, type_id: int, place: tuple[int, int] = (0, 0)) -> None:
    result.ids.append(token_id(token))
    result.tokens.append(token)
    result.starts.append(place[0])
    result.ends.append(place[1])
    result.type_ids.append(type_id)
    result.special.append(place == (0, 0))


ANSWERS: dict[str, Callable[[FakeModel, Any], Any]] = {
    "Embed": embed,
    "EmbedSparse": embed_sparse,
    "EmbedTokens": embed_tokens,
    "Classify": classify,
    "Regress": regress,
    "Choose": choose,
    "Answer": answer,
    "Rerank": rerank,
    "Tag": tag,
    "FillMask": fill_mask,
    "ZeroShot": zero_shot,
    "Tokenize": tokenize,
}
"""Answer of each RPC, except ListModels and GetModel."""


def check(method: str, request: Any, model: FakeModel, refused: Mapping[str, str]) -> tuple[list[int], list[int]]:
    """Refuse empty texts, texts that are too long, and those that a test names.

    Args:
        method: name of the RPC.
        request: message of the call.
        model: model that reads it.
        refused: texts to refuse, with the reason.

    Returns:
        For each input, the number of tokens that are read, and the number that are truncated.

    Raises:
        Refusal: with all violations.
    """
    any_length = method in _ANY_LENGTH or (method == "Embed" and request.windows)
    limit = sys.maxsize if any_length else model.max_seq_length
    truncates = model.manifest.get("truncate", False)
    if method != "Tokenize" and request.HasField("truncate"):
        truncates = request.truncate
    name = "texts" if hasattr(request, "texts") else "inputs"
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
