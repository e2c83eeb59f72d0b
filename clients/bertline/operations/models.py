"""Operations `models`, `model` and `health`: what a server serves."""

from __future__ import annotations

from bertline._convert import Call, Request, only
from bertline._inputs import read_model
from bertline._protos import SERVING, HealthRequest
from bertline.results import Model
from bertline.v1 import encoder_pb2 as pb

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name
"""Service name of the server's health. Appended `/NAME` and `/NAME/VERSION` give the health of models."""
_STATES = {
    pb.MODEL_STATE_LOADING: "loading",
    pb.MODEL_STATE_READY: "ready",
    pb.MODEL_STATE_STALE: "stale",
    pb.MODEL_STATE_FAILED: "failed",
}


def models(*, timeout: float | None = None) -> Call[list[Model]]:
    """Return all versions on the server, including those that failed to load: see their `state` and `error`."""
    return Call(
        "ListModels",
        lambda batch_size: [Request(pb.ListModelsRequest())],
        lambda reply: [read_model_info(info) for info in reply.models],
        timeout,
    )


def model(name: str = "", version: str = "", *, timeout: float | None = None) -> Call[Model]:
    """Return one loaded model.

    Args:
        name: name of the model; empty for the default one.
        version: model version; empty for the highest loaded version.
        timeout: maximum seconds for the request; None for the client's timeout.
    """
    request = pb.GetModelRequest(model=read_model(name, version))
    return Call("GetModel", lambda batch_size: [Request(request)], read_model_info, timeout, join=only)


def health(model: str, version: str, timeout: float | None) -> Call[bool]:
    """See `Client.health`."""
    ref = read_model(model, version)
    if ref.version and not ref.name:
        raise ValueError(f"`version` needs the name of its `model`: `{version}`")
    service = "/".join([SERVICE, *filter(None, (ref.name, ref.version))]) if ref.name else ""
    return Call(
        "Check",
        lambda batch_size: [Request(HealthRequest(service=service))],
        lambda reply: reply.status == SERVING,
        timeout,
        join=only,
    )


def read_model_info(info: pb.ModelInfo) -> Model:
    """Return a version of a model."""
    return Model(
        name=info.model.name,
        version=info.model.version,
        task=info.task,
        precision=info.precision,
        max_seq_length=info.max_seq_length,
        dim=info.dim,
        labels=tuple(info.labels),
        digest=info.digest,
        manifest_json=info.manifest_json,
        state=_STATES.get(info.state, ""),
        error=info.error,
        engine=info.engine,
        space=info.model.space,
    )
