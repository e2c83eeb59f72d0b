"""Methods of the service `bertline.v1.Encoder`, for all fronts: request and call -> serialised reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.endpoint import Request
from serving.core.limits import ParseLimits
from serving.core.models import Model, State, Version
from serving.core.service import InferenceService
from serving.endpoints import ENDPOINTS
from serving.endpoints.base import reference
from serving.endpoints.tokenize import answer_tokenize

ENCODER = pb.DESCRIPTOR.services_by_name["Encoder"]
SERVICE, METHODS = ENCODER.full_name, tuple(method.name for method in ENCODER.methods)
Method = Callable[[Request, Call], Awaitable[bytes]]
STATES = {
    State.LOADING: pb.MODEL_STATE_LOADING,
    State.READY: pb.MODEL_STATE_READY,
    State.STALE: pb.MODEL_STATE_STALE,
    State.FAILED: pb.MODEL_STATE_FAILED,
}


def encoder_methods(service: InferenceService) -> dict[str, Method]:
    """Return the methods of the service by name."""
    return {
        **{endpoint.name: partial(service.infer, endpoint) for endpoint in ENDPOINTS},
        "Tokenize": partial(answer_tokenize, service),
        "ListModels": partial(list_models, service),
        "GetModel": partial(get_model, service),
    }


async def list_models(service: InferenceService, request: Request, call: Call) -> bytes:
    """Answer a ListModelsRequest: all versions, loaded or not."""
    request.parse(ParseLimits())
    return pb.ListModelsReply(
        models=[describe(item, service.problems) for item in service.models.versions]
    ).SerializeToString()


async def get_model(service: InferenceService, request: Request, call: Call) -> bytes:
    """Answer a GetModelRequest for a loaded model.

    Raises:
        ModelNotFoundError, UnavailableError, InvalidRequestError: as `Models.find`.
    """
    wanted = request.parse(ParseLimits()).model
    model = service.models.find(wanted.name, wanted.version)
    return next(
        describe(item, service.problems) for item in service.models.versions if item.model is model
    ).SerializeToString()


def describe(version: Version, problems: Mapping[Model, str]) -> pb.ModelInfo:
    """Return the description of a version, loaded or not.

    Args:
        problems: model -> why its canary fails.
    """
    ref, state = pb.ModelRef(name=version.name, version=version.version), STATES[version.state]
    if not (model := version.model):
        return pb.ModelInfo(model=ref, state=state, error=version.error)
    manifest, ref = model.manifest, reference(model)
    return pb.ModelInfo(
        model=ref,
        state=state,
        error=version.error or problems.get(model, ""),
        task=manifest.task,
        precision=manifest.precision,
        max_seq_length=manifest.settings.max_seq_length,
        dim=model.task.vector_size(manifest.hidden_size),
        labels=getattr(manifest.settings, "labels", ()),
        digest=model.digest,
        manifest_json=model.manifest_json,
        engine=model.execution.engine,
    )
