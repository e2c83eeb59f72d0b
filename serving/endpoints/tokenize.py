"""Tokenize: texts -> tokens of a model's tokenizer. Runs no model, so the scheduler is not involved."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from io import BytesIO

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.codec_pool import SEQUENCE_BYTES
from serving.core.encoding import limited
from serving.core.endpoint import Request
from serving.core.models import Model
from serving.core.service import ADMITTED_BYTES, InferenceService, record_model
from serving.endpoints.base import reference, text_pair
from serving.endpoints.wire import header
from tasks.text.sequence_template import SequenceTemplate
from tasks.text.tokenizer import Tokenizer

MAX_TOKENS = 2**19
"""Maximum number of tokens of a reply. Each takes up to 80 bytes in JSON and some microseconds."""
PART_TOKENS = 1024
"""Minimum tokens of one part of a result. Making a message of a million tokens would hold the interpreter lock for a
second."""


async def answer_tokenize(service: InferenceService, request: Request, call: Call) -> bytes:
    """Answer a TokenizeRequest.

    Args:
        service: models, limits and threads.
        request: request as its front has received it.
        call: record of the call.

    Raises:
        ServingError: when the request is invalid, refused or expired.
    """

    def parse_inputs() -> tuple[Model, Sequence[pb.TextInput]]:
        message = request.parse(service.limits.for_parsing(call.check))
        model = service.models.find(message.model.name, message.model.version)
        record_model(call, model, len(message.inputs))
        service.limits.check_count(len(message.inputs))
        return model, message.inputs

    model, inputs = await service.codec_pool.run(call, request.num_bytes, parse_inputs, small=ADMITTED_BYTES)
    size = max(request.num_bytes, SEQUENCE_BYTES * len(inputs))
    # Always in the thread: a reply names every token, so it takes longer than the size of the request suggests.
    return await service.tokenize_pool.run(call, size, lambda: _reply(service, call, model, inputs), small=0)


def _reply(service: InferenceService, call: Call, model: Model, inputs: Sequence[pb.TextInput]) -> bytes:
    texts = {f"inputs[{index}].text": item.text for index, item in enumerate(inputs)}
    pairs = {f"inputs[{index}].text_pair": item.text_pair for index, item in enumerate(inputs)}
    service.limits.check_chars(texts | pairs)
    started_s = time.monotonic()
    reason = f"the texts have more than {MAX_TOKENS} tokens, the maximum of a reply"
    check_tokens = limited(service.encoder.check_tokens(call, model), MAX_TOKENS, reason)
    tokenizer = model.task.tokenizer.with_progress(check_tokens)
    data, num_tokens = BytesIO(), list[int]()  # BytesIO returns its content without a copy
    for item in inputs:
        call.check()
        parts, count = tokenize(tokenizer, item)
        data.write(header(pb.TokenizeReply.RESULTS_FIELD_NUMBER, sum(map(len, parts))))
        data.writelines(parts)
        num_tokens.append(count)
    timings = pb.Timings(tokenize_s=service.encoder.record(call, model, started_s))
    reply = pb.TokenizeReply(model=reference(model), num_tokens=num_tokens, timings=timings)
    data.write(reply.SerializeToString())
    return data.getvalue()


def tokenize(tokenizer: Tokenizer, item: pb.TextInput) -> tuple[list[bytes], int]:
    """Return the result for a text or a pair, serialised in parts, and its number of tokens."""
    pair, parts, count, message = text_pair(item), list[bytes](), 0, pb.TokenizedInput()
    for following in _messages(tokenizer, [item.text] if pair is None else [item.text, pair]):
        message.MergeFrom(following)
        count += len(following.ids)
        if len(message.ids) >= PART_TOKENS:
            parts.append(message.SerializeToString())
            message = pb.TokenizedInput()
    return [*parts, message.SerializeToString()], count


def _messages(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[pb.TokenizedInput]:
    """Yield the result for a text or a pair as several messages, which the reader merges."""
    template = tokenizer.single if len(texts) == 1 else tokenizer.pair
    yield _special(tokenizer, template, 0)
    for number, text in enumerate(texts):
        for block in tokenizer.tokenize_blocks(text):
            ids = block.ids.tolist()
            yield pb.TokenizedInput(
                ids=ids,
                tokens=[tokenizer.token(token_id) for token_id in ids],
                starts=block.offsets[:, 0].tolist(),
                ends=block.offsets[:, 1].tolist(),
                type_ids=[template.text_types[number]] * len(ids),
                special=[False] * len(ids),
            )
        yield _special(tokenizer, template, number + 1)


def _special(tokenizer: Tokenizer, template: SequenceTemplate, gap: int) -> pb.TokenizedInput:
    """Return the special tokens before the first text (gap 0), between two texts, or after the last."""
    ids, type_ids = template.ids[gap].tolist(), template.type_ids[gap].tolist()
    tokens, zeros = [tokenizer.token(token_id) for token_id in ids], [0] * len(ids)
    return pb.TokenizedInput(
        ids=ids, tokens=tokens, starts=zeros, ends=zeros, type_ids=type_ids, special=[True] * len(ids)
    )
