"""Messages about models (ListModels, GetModel) and about their tokenizers (Tokenize)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from bertline.v1 import encoder_pb2 as pb
from serving.core.models import Model, State, Version
from serving.endpoints.base import pair_of
from serving.endpoints.wire import header
from tasks.model_directory import MODEL_FILE
from tasks.tokenizer import Tokenizer

STATES = {
    State.LOADING: pb.MODEL_STATE_LOADING,
    State.READY: pb.MODEL_STATE_READY,
    State.STALE: pb.MODEL_STATE_STALE,
    State.FAILED: pb.MODEL_STATE_FAILED,
}


def reference(model: Model) -> pb.ModelRef:
    """Return the name and version of a model."""
    return pb.ModelRef(name=model.manifest.name, version=model.manifest.version)


def describe(version: Version) -> pb.ModelInfo:
    """Return the description of a version, loaded or not, for ListModels and GetModel."""
    unloaded = pb.ModelInfo(model=pb.ModelRef(name=version.name, version=version.version))
    info = _describe_loaded(version.model) if version.model else unloaded
    info.state, info.error = STATES[version.state], version.error
    return info


def _describe_loaded(model: Model) -> pb.ModelInfo:
    manifest = model.manifest
    return pb.ModelInfo(
        model=reference(model),
        task=manifest.task,
        precision=manifest.precision,
        max_seq_length=manifest.settings.max_seq_length,
        dim=manifest.hidden_size if manifest.task == "embedding" else 0,
        labels=getattr(manifest.settings, "labels", ()),
        digest=manifest.files[MODEL_FILE],
        manifest_json=model.manifest_json,
    )


@dataclass(frozen=True, slots=True)
class Part:
    """Some tokens of an input, serialised. The concatenated parts of an input are one message."""

    data: bytes
    num_tokens: int
    is_last: bool
    """True for the last part of its input."""


def tokenize(tokenizer: Tokenizer, inputs: Iterable[pb.TextInput]) -> Iterator[Part]:
    """Yield the results of Tokenize for texts and pairs in parts, since a large request takes seconds."""
    for item in inputs:
        pair = pair_of(item)
        rows = _rows(tokenizer, [item.text] if pair is None else [item.text, pair])
        message = next(rows)
        for following in rows:
            if len(message.ids) >= _PART_TOKENS:
                yield Part(message.SerializeToString(), len(message.ids), is_last=False)
                message = following
            else:
                message.MergeFrom(following)
        yield Part(message.SerializeToString(), len(message.ids), is_last=True)


_PART_TOKENS = 1024
"""Minimum tokens of a part that is not the last. A message of a million tokens would hold the interpreter lock for a
second."""


def _rows(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[pb.TokenizedInput]:
    """Yield the tokens of a text or a pair, block by block."""
    yield _special(tokenizer, tokenizer.cls_id, 0)
    for kind, text in enumerate(texts):
        for block in tokenizer.tokenize_blocks(text):
            ids = block.ids.tolist()
            yield pb.TokenizedInput(
                ids=ids,
                tokens=[tokenizer.token(token_id) for token_id in ids],
                starts=block.offsets[:, 0].tolist(),
                ends=block.offsets[:, 1].tolist(),
                type_ids=[kind] * len(ids),
                special=[False] * len(ids),
            )
        yield _special(tokenizer, tokenizer.sep_id, kind)


def _special(tokenizer: Tokenizer, token_id: int, kind: int) -> pb.TokenizedInput:
    token = tokenizer.token(token_id)
    return pb.TokenizedInput(ids=[token_id], tokens=[token], starts=[0], ends=[0], type_ids=[kind], special=[True])


def write_results(file: BinaryIO, parts: Iterable[Part]) -> list[int]:
    """Write the field `results` of a TokenizeReply, serialised; its other fields may follow.

    Returns:
        Number of tokens of each input.
    """
    blocks, num_tokens = list[bytes](), [0]
    for part in parts:
        blocks.append(part.data)
        num_tokens[-1] += part.num_tokens
        if part.is_last:
            file.write(header(pb.TokenizeReply.RESULTS_FIELD_NUMBER, sum(map(len, blocks))))
            file.writelines(blocks)
            blocks.clear()
            num_tokens.append(0)
    return num_tokens[:-1]
