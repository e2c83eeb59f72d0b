"""FillMask: texts with masks -> tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.endpoints.base import MAX_SCORES, SCORE_BYTES, TextEndpoint, raise_violations
from serving.endpoints.wire import serialize_elements
from tasks.base import AnyTask
from tasks.features import Features
from tasks.masked_lm import ClozeExample, MaskedLM, MaskPrediction
from tasks.text.tokenizer import Tokenizer

MASKS = pb.FillMaskResult.MASKS_FIELD_NUMBER
DEFAULT_TOP_K = 5
_SPACE_MARKS = ("Ġ", "▁")
"""Characters that byte-level BPE and SentencePiece write for the space before a word."""


class FillMask(TextEndpoint):
    """Texts with masks -> tokens."""

    name = "FillMask"
    task = MaskedLM.name
    reply_type = pb.FillMaskReply
    inputs = "texts"

    def part_counts(self, request: pb.FillMaskRequest) -> Mapping[str, int]:
        return {"targets": len(request.targets)}

    def examples(self, request: pb.FillMaskRequest, task: MaskedLM) -> list[ClozeExample]:
        return [ClozeExample(text) for text in request.texts]

    def task_for(self, request: pb.FillMaskRequest, model: Model) -> AnyTask:
        tokenizer = model.task.tokenizer
        raise_violations(
            Violation(f"targets[{index}]", f"not in the vocabulary{_hint(token, tokenizer)}")
            for index, token in enumerate(request.targets)
            if tokenizer.token_id(token) is None
        )
        return model.task

    def reply_bytes(self, windows: Sequence[Sequence[Features]], request: pb.FillMaskRequest, task: MaskedLM) -> int:
        return tokens_bytes(windows, task, request.top_k or DEFAULT_TOP_K, len(request.targets))

    def result(
        self, prediction: MaskPrediction, example: ClozeExample, task: MaskedLM, request: pb.FillMaskRequest
    ) -> bytes:
        fills = (self._fill(prediction, mask, task, request) for mask in range(len(prediction.log_probs)))
        return b"".join(serialize_elements(MASKS, (fill.SerializeToString() for fill in fills)))

    def _fill(self, prediction: MaskPrediction, mask: int, task: MaskedLM, request: pb.FillMaskRequest) -> pb.MaskFill:
        fill, log_probs = pb.MaskFill(), prediction.log_probs[mask]
        for token_id, score in prediction.top(mask, request.top_k or DEFAULT_TOP_K):
            fill.tokens.add(token=task.tokenizer.token(token_id), score=score)
        for token in request.targets:
            fill.targets.add(token=token, score=float(np.exp(log_probs[task.tokenizer.token_id(token)])))
        return fill


def _hint(target: str, tokenizer: Tokenizer) -> str:
    """Return a hint to the token of the same word, perhaps behind a space; empty if there is none."""
    candidates = (mark + target.strip() for mark in ("", *_SPACE_MARKS))
    return next((f"; did you mean `{item}`?" for item in candidates if tokenizer.token_id(item) is not None), "")


def tokens_bytes(windows: Sequence[Sequence[Features]], task: MaskedLM, top_k: int, num_targets: int = 0) -> int:
    """Return the bytes of a reply. Raise InvalidRequestError if it would hold more than MAX_SCORES tokens in all."""
    mask_id, vocab_size = task.mask_id, task.tokenizer.vocab_size
    mask = task.tokenizer.mask_token
    num_masks = sum(int((window.input_ids == mask_id).sum()) for items in windows for window in items)
    count = num_masks * (min(top_k, vocab_size) + num_targets)
    if count > MAX_SCORES:
        reason = (
            f"too many tokens requested for {num_masks} {mask}s: `{count}` (maximum `{MAX_SCORES}` per reply); "
            "send fewer texts per call, a smaller top_k or fewer targets"
        )
        raise InvalidRequestError(reason, [Violation("texts", reason)])
    return SCORE_BYTES * count
