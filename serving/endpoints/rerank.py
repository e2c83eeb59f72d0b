"""Rerank: a query and documents -> the documents in the order in which they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.core.errors import InvalidRequestError, Violation
from serving.core.models import Model
from serving.endpoints.base import TextEndpoint, raise_violations
from tasks.classification import Classification
from tasks.ranking import Ranking, RankingExample, create_ranking, ranks_by_itself


class Rerank(TextEndpoint):
    """Queries with documents -> ranked documents."""

    name = "Rerank"
    task = Ranking.name
    reply_type = pb.RerankReply

    any_task = True
    exception = " unless the request names it"

    def fits(self, model: Model) -> bool:
        return ranks_by_itself(model.task)

    def task_for(self, request: pb.RerankRequest, model: Model) -> Ranking:
        try:
            return create_ranking(model.task, label=request.label, raw_scores=request.raw_scores)
        except ValueError as error:
            field = "label" if request.label or isinstance(model.task, Classification) else "model"
            reason = f"{model} cannot rank documents: {error}"
            raise InvalidRequestError(reason, [Violation(field, reason)]) from None

    def part_counts(self, request: pb.RerankRequest) -> Mapping[str, int]:
        return {"documents": self.num_sequences(request)}

    def num_sequences(self, request: pb.RerankRequest) -> int:
        return sum(len(item.documents) for item in request.inputs)

    def read_bytes(self, request: pb.RerankRequest, num_bytes: int) -> int:
        return num_bytes + sum((len(item.documents) - 1) * len(item.query) for item in request.inputs)

    def examples(self, request: pb.RerankRequest, task: Ranking) -> list[RankingExample]:
        raise_violations(
            Violation(f"inputs[{index}].documents", "empty; at least one is needed")
            for index, item in enumerate(request.inputs)
            if not item.documents
        )
        return [RankingExample(item.query, tuple(item.documents)) for item in request.inputs]

    def windowed_fields(self, request: pb.RerankRequest) -> frozenset[str]:
        return frozenset({"documents"})

    def is_best_effort(self, request: pb.RerankRequest) -> bool:
        return request.best_effort

    def within(self, examples: list[RankingExample], num_bytes: float) -> tuple[list[RankingExample], int]:
        kept, size = [], 0
        for example in examples:
            query_bytes, documents = len(example.query.encode()), example.documents
            count = 0
            while count < len(documents) and size <= num_bytes:
                size += query_bytes + len(documents[count].encode())
                count += 1
            kept.append(replace(example, documents=documents[:count], num_unread=len(documents) - count))
        return kept, size

    def result(
        self, prediction: np.ndarray, example: RankingExample, task: Ranking, request: pb.RerankRequest
    ) -> bytes:
        scores = prediction.astype(np.float32)  # as the reply has them, so that equal ones keep their order
        scored = np.flatnonzero(~np.ma.getmaskarray(scores))
        order = scored[np.argsort(-np.ma.getdata(scores)[scored], kind="stable")].tolist()
        unscored = np.flatnonzero(np.ma.getmaskarray(scores)).tolist()
        unread = range(len(scores), len(scores) + example.num_unread)
        result = pb.RerankResult(num_scored=len(order) if request.best_effort else 0)
        for place, document in enumerate([*order, *unscored, *unread][: request.top_n or None]):
            result.documents.add(document=document, score=scores[document] if place < len(order) else 0)
        return result.SerializeToString()
