"""What is told of loaded models: which there are, and what their tokenizers make of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from bertline.v1 import encoder_pb2 as pb
from serving.models import Model, State, Version
from serving.rpcs.base import pair_of
from tasks.manifest import MODEL_FILE
from tasks.tokenizer import Tokenizer

STATES = {
    State.LOADING: pb.MODEL_STATE_LOADING,
    State.READY: pb.MODEL_STATE_READY,
    State.STALE: pb.MODEL_STATE_STALE,
    State.FAILED: pb.MODEL_STATE_FAILED,
}


def reference(model: Model) -> pb.ModelRef:
    """Name and version of a model."""
    return pb.ModelRef(name=model.manifest.name, version=model.manifest.version)


def describe(version: Version) -> pb.ModelInfo:
    """What ListModels and GetModel say of a version, loaded or not."""
    known = pb.ModelInfo(model=pb.ModelRef(name=version.name, version=version.version))
    info = _describe_loaded(version.model) if version.model else known
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
        manifest_json=manifest.to_json(),
    )


def tokenize(tokenizer: Tokenizer, inputs: Iterable[pb.TextInput]) -> Iterator[pb.TokenizedInput]:
    """What Tokenize says of texts and pairs, one by one: a large request takes seconds."""
    for item in inputs:
        pair = pair_of(item)
        parts = tokenizer.tokenize([item.text] if pair is None else [item.text, pair])
        arrays = tokenizer.assemble(*(part.ids for part in parts))
        blocks = [np.zeros((1, 2), dtype=np.int64)]  # of [CLS]
        for part in parts:
            blocks += [part.offsets, blocks[0]]
        offsets = np.concatenate(blocks)
        special = [False] * len(offsets)
        for place in np.cumsum([0, *(len(part) + 1 for part in parts)]):
            special[place] = True
        yield pb.TokenizedInput(
            ids=arrays["input_ids"].tolist(),
            tokens=[tokenizer.token(token_id) for token_id in arrays["input_ids"].tolist()],
            starts=offsets[:, 0].tolist(),
            ends=offsets[:, 1].tolist(),
            type_ids=arrays["token_type_ids"].tolist(),
            special=special,
        )
