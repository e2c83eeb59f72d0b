"""ListModels and GetModel: descriptions of the versions of models, with the errors of those that cannot be loaded."""

from __future__ import annotations

from bertline.v1 import encoder_pb2 as pb
from serving.core.models import Model, Models, State, Version
from serving.endpoints.wire import parse
from tasks.embedding import Embedding
from tasks.sparse_embedding import SparseEmbedding
from tasks.token_embedding import TokenEmbedding

STATES = {
    State.LOADING: pb.MODEL_STATE_LOADING,
    State.READY: pb.MODEL_STATE_READY,
    State.STALE: pb.MODEL_STATE_STALE,
    State.FAILED: pb.MODEL_STATE_FAILED,
}


def reference(model: Model) -> pb.ModelRef:
    """Return the name and version of a model."""
    return pb.ModelRef(name=model.manifest.name, version=model.manifest.version)


def list_models(models: Models, data: bytes) -> bytes:
    """Answer a ListModelsRequest: all versions, loaded or not."""
    parse(pb.ListModelsRequest, data)
    return pb.ListModelsReply(models=[describe(item) for item in models.versions]).SerializeToString()


def get_model(models: Models, data: bytes) -> bytes:
    """Answer a GetModelRequest for a loaded model.

    Raises:
        ModelNotFoundError, UnavailableError, InvalidRequestError: as `Models.find`.
    """
    request = parse(pb.GetModelRequest, data)
    model = models.find(request.model.name, request.model.version)
    return next(describe(item) for item in models.versions if item.model is model).SerializeToString()


def describe(version: Version) -> pb.ModelInfo:
    """Return the description of a version, loaded or not."""
    if version.model:
        info = _describe_loaded(version.model)
    else:
        info = pb.ModelInfo(model=pb.ModelRef(name=version.name, version=version.version))
    info.state, info.error = STATES[version.state], version.error
    return info


def _describe_loaded(model: Model) -> pb.ModelInfo:
    manifest = model.manifest
    return pb.ModelInfo(
        model=reference(model),
        task=manifest.task,
        precision=manifest.precision,
        max_seq_length=manifest.settings.max_seq_length,
        dim=_dim(model),
        labels=getattr(manifest.settings, "labels", ()),
        digest=model.digest,
        manifest_json=model.manifest_json,
        engine=model.execution.engine,
    )


def _dim(model: Model) -> int:
    """Return the dimension of the vectors of a model; 0 for a task without vectors."""
    if isinstance(model.task, SparseEmbedding):
        return model.task.tokenizer.vocab_size
    return model.manifest.hidden_size if isinstance(model.task, Embedding | TokenEmbedding) else 0
