"""FillMask: texts with [MASK] -> tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.errors import Violation
from serving.rpcs.base import Rpc, refuse_any
from tasks.base import AnyTask, InvalidExample
from tasks.masked_lm import ClozeExample, MaskedLM, MaskPrediction

if TYPE_CHECKING:
    from serving.models import Model


class FillMask(Rpc):
    """Texts with [MASK] -> tokens."""

    name = "FillMask"
    task = MaskedLM.name
    request_type = pb.FillMaskRequest
    inputs = "texts"

    def examples(self, request: pb.FillMaskRequest, task: MaskedLM) -> list[ClozeExample]:
        return [ClozeExample(text) for text in request.texts]

    def specialise(self, model: Model, request: pb.FillMaskRequest) -> AnyTask:
        tokenizer = model.task.tokenizer
        refuse_any(
            Violation(f"targets[{index}]", "not in the vocabulary")
            for index, token in enumerate(request.targets)
            if tokenizer.token_id(token) is None
        )
        return model.task

    def field(self, invalid: InvalidExample, request: pb.FillMaskRequest) -> str:
        return f"texts[{invalid.index}]"

    def result(
        self, prediction: MaskPrediction, example: ClozeExample, task: MaskedLM, request: pb.FillMaskRequest
    ) -> pb.FillMaskResult:
        target_ids = [task.tokenizer.token_id(token) for token in request.targets]
        return pb.FillMaskResult(
            masks=[
                pb.MaskFill(
                    tokens=[
                        pb.TokenScore(token=task.tokenizer.token(token_id), score=score)
                        for token_id, score in prediction.top(mask, request.top_k or 5)
                        if token_id < task.tokenizer.vocab_size  # a graph's vocabulary may be padded
                    ],
                    targets=[
                        pb.TokenScore(token=token, score=float(np.exp(log_probs[token_id])))
                        for token, token_id in zip(request.targets, target_ids, strict=True)
                    ],
                )
                for mask, log_probs in enumerate(prediction.log_probs)
            ]
        )

    def reply(self, results: Sequence[pb.FillMaskResult]) -> pb.FillMaskReply:
        return pb.FillMaskReply(results=results)
