"""ListModels and GetModel: descriptions of the versions of models, with the errors of those that cannot be loaded."""

from __future__ import annotations

from bertline.v1 import encoder_pb2 as pb
from serving.core.admission import ParseLimits
from serving.core.endpoint import Request
from serving.core.models import Model, Models, State, Version

STATES = {
    State.LOADING: pb.MODEL_STATE_LOADING,
    State.READY: pb.MODEL_STATE_READY,
    State.STALE: pb.MODEL_STATE_STALE,
    State.FAILED: pb.MODEL_STATE_FAILED,
}


def reference(model: Model) -> pb.ModelRef:
    """Return the name and version of a model."""
    return pb.ModelRef(name=model.manifest.name, version=model.manifest.version)


def list_models(models: Models, request: Request) -> bytes:
    """Answer a ListModelsRequest: all versions, loaded or not."""
    request.parse(ParseLimits())
    return pb.ListModelsReply(models=[describe(item) for item in models.versions]).SerializeToString()


def get_model(models: Models, request: Request) -> bytes:
    """Answer a GetModelRequest for a loaded model.

    Raises:
        ModelNotFoundError, UnavailableError, InvalidRequestError: as `Models.find`.
    """
    wanted = request.parse(ParseLimits()).model
    model = models.find(wanted.name, wanted.version)
    return next(describe(item) for item in models.versions if item.model is model).SerializeToString()


def describe(version: Version) -> pb.ModelInfo:
    """Return the description of a version, loaded or not."""
    ref, state = pb.ModelRef(name=version.name, version=version.version), STATES[version.state]
    if not (model := version.model):
        return pb.ModelInfo(model=ref, state=state, error=version.error)
    manifest = model.manifest
    return pb.ModelInfo(
        model=ref,
        state=state,
        error=version.error,
        task=manifest.task,
        precision=manifest.precision,
        max_seq_length=manifest.settings.max_seq_length,
        dim=model.task.vector_size(manifest.hidden_size),
        labels=getattr(manifest.settings, "labels", ()),
        digest=model.digest,
        manifest_json=model.manifest_json,
        engine=model.execution.engine,
    )
