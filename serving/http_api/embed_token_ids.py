"""Embed on token ids: rows of any lengths, which nothing pads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.core.encoding import TextEncoder
from serving.core.limits import ParseLimits, RequestLimits
from serving.core.models import Model
from serving.core.request import PendingRequest
from serving.endpoints.base import TextInference
from serving.endpoints.embed import Embed
from serving.open_inference.tensors import invalid_field
from tasks.features import Features


class EmbedTokenIds(Embed):
    """Token ids of texts, special tokens included -> vectors. An object serves one request."""

    inputs = "input"

    def __init__(self, request: pb.EmbedRequest, rows: Sequence[Sequence[int]]) -> None:
        """Set the request.

        Args:
            request: model and options.
            rows: token ids of each text.
        """
        self._request, self._rows = request, rows

    def parse(self, data: bytes, limits: ParseLimits) -> pb.EmbedRequest:
        """Return the request, which was parsed before."""
        return self._request

    def num_inputs(self, request: pb.EmbedRequest) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def max_tokens(self, request: pb.EmbedRequest, model: Model) -> float:
        """Return the number of tokens."""
        return sum(map(len, self._rows))

    def prepare(self, request: pb.EmbedRequest, model: Model, limits: RequestLimits) -> TextInference:
        """Return the inference on the rows."""
        task, examples = self.task_for(request, model), [""] * len(self._rows)
        return _TokenIdInference(self, request, model, task, examples, rows=self._rows)


@dataclass(slots=True)
class _TokenIdInference(TextInference):
    rows: Sequence[Sequence[int]] = ()

    def encode(self, encoder: TextEncoder, request: PendingRequest) -> None:
        """Check the rows."""
        for number, row in enumerate(request.while_pending(self.rows)):
            _check_row(row, number, self.model)
        self.windows = [
            [Features(input_ids=np.array(row, np.int64), token_type_ids=np.zeros(len(row), np.int64))]
            for row in self.rows
        ]


def _check_row(row: Sequence[int], number: int, model: Model) -> None:
    """Refuse a row that is too long, or of another tokenizer, whose vector would be wrong: some clients send OpenAI's.

    Ids that are right by chance are not noticed.
    """
    tokenizer, longest, field = model.task.tokenizer, model.task.settings.max_seq_length, f"input[{number}]"
    if len(row) > longest:
        raise invalid_field(field, f"too long: `{len(row)}` tokens (maximum `{longest}`)")
    stop = model.manifest.vocab_size
    if wrong := [place for place, item in enumerate(row) if not 0 <= item < stop]:
        raise invalid_field(f"{field}[{wrong[0]}]", f"must be from 0 to {stop - 1}: `{row[wrong[0]]}`")
    first, last = (ids.tolist() for ids in (tokenizer.single.ids[0], tokenizer.single.ids[-1]))
    inside = row[len(first) : len(row) - len(last)]
    if list(row[: len(first)]) != first or list(row[len(row) - len(last) :]) != last:
        problem = f"they begin with `{row[0]}` and end with `{row[-1]}`, its own with `{first}` and `{last}`"
    elif not inside:
        raise invalid_field(field, "the tokens of an empty text; send at least one of a text")
    elif strange := {tokenizer.pad_id, *first, *last}.intersection(inside):
        problem = f"special token `{min(strange)}` is inside"
    else:
        return
    raise invalid_field(
        field,
        f"not token ids of this model: {problem} (POST /v1/tokenize gives them); send texts, in LangChain with "
        "check_embedding_ctx_length=False",
    )
