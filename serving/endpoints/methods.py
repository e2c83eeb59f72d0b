"""Methods of the service `bertline.v1.Encoder`, for all fronts: request and call -> serialised reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.endpoint import Endpoint, Request
from serving.core.service import InferenceService
from serving.endpoints import ENDPOINTS
from serving.endpoints.catalog import get_model, list_models
from serving.endpoints.tokenize import answer_tokenize

ENCODER = pb.DESCRIPTOR.services_by_name["Encoder"]
SERVICE, METHODS = ENCODER.full_name, tuple(method.name for method in ENCODER.methods)
Method = Callable[[Request, Call], Awaitable[bytes]]


def infer_method(service: InferenceService, endpoint: Endpoint) -> Method:
    """Return the method that answers requests for an endpoint."""

    async def method(request: Request, call: Call) -> bytes:
        return (await service.infer(endpoint, request, call)).data

    return method


def encoder_methods(service: InferenceService) -> dict[str, Method]:
    """Return the methods of the service by name."""

    async def tokenize_texts(request: Request, call: Call) -> bytes:
        return await answer_tokenize(service, request, call)

    async def list_all(request: Request, call: Call) -> bytes:
        return list_models(service.models, request)

    async def get_one(request: Request, call: Call) -> bytes:
        return get_model(service.models, request)

    methods: dict[str, Method] = {endpoint.name: infer_method(service, endpoint) for endpoint in ENDPOINTS}
    return methods | {"Tokenize": tokenize_texts, "ListModels": list_all, "GetModel": get_one}
