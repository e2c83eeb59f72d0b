"""Service `bertline.v1.Encoder`: its methods, and the endpoint of each."""

from __future__ import annotations

import grpc

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.core.service import InferenceService
from serving.endpoints import ENDPOINTS
from serving.endpoints.catalog import get_model, list_models
from serving.endpoints.tokenize import answer_tokenize
from serving.grpc_api.routing import Method, infer_method, route

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods)


def encoder_handlers(service: InferenceService) -> grpc.GenericRpcHandler:
    """Return the gRPC handlers of the service."""

    async def tokenize_texts(data: bytes, call: Call) -> bytes:
        return await answer_tokenize(service, data, call.deadline_s, call)

    async def list_all(data: bytes, call: Call) -> bytes:
        return list_models(service.models, data)

    async def get_one(data: bytes, call: Call) -> bytes:
        return get_model(service.models, data)

    methods: dict[str, Method] = {endpoint.name: infer_method(service, endpoint) for endpoint in ENDPOINTS}
    methods |= {"Tokenize": tokenize_texts, "ListModels": list_all, "GetModel": get_one}
    return route(service, SERVICE, methods)
