"""Methods of the service `bertline.v1.Encoder`, for all fronts: serialised request and call -> serialised reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from serving.core.calls import Call
from serving.core.endpoint import Endpoint
from serving.core.service import InferenceService
from serving.endpoints import ENDPOINTS
from serving.endpoints.catalog import get_model, list_models
from serving.endpoints.tokenize import answer_tokenize

Method = Callable[[bytes, Call], Awaitable[bytes]]


def infer_method(service: InferenceService, endpoint: Endpoint) -> Method:
    """Return the method that answers requests for an endpoint."""

    async def method(data: bytes, call: Call) -> bytes:
        return (await service.infer(endpoint, data, call.deadline_s, call)).data

    return method


def encoder_methods(service: InferenceService) -> dict[str, Method]:
    """Return the methods of the service by name."""

    async def tokenize_texts(data: bytes, call: Call) -> bytes:
        return await answer_tokenize(service, data, call.deadline_s, call)

    async def list_all(data: bytes, call: Call) -> bytes:
        return list_models(service.models, data)

    async def get_one(data: bytes, call: Call) -> bytes:
        return get_model(service.models, data)

    methods: dict[str, Method] = {endpoint.name: infer_method(service, endpoint) for endpoint in ENDPOINTS}
    return methods | {"Tokenize": tokenize_texts, "ListModels": list_all, "GetModel": get_one}
