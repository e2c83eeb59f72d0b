"""Service `bertline.v1.Encoder` over gRPC."""

from __future__ import annotations

import grpc

from bertline.v1 import encoder_pb2 as pb
from serving.core.service import InferenceService
from serving.endpoints.methods import encoder_methods
from serving.grpc_api.routing import route

SERVICE = pb.DESCRIPTOR.services_by_name["Encoder"].full_name
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods)


def encoder_handlers(service: InferenceService) -> grpc.GenericRpcHandler:
    """Return the gRPC handlers of the service."""
    return route(service, SERVICE, encoder_methods(service))
