"""Routing of gRPC calls to methods that know no gRPC: serialised request and call -> serialised reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping

import grpc

from serving.core.service import InferenceService
from serving.endpoints.methods import Method
from serving.grpc_api.current import current_call


def route(
    service: InferenceService, name: str, methods: Mapping[str, Method], *, always: Collection[str] = ()
) -> grpc.GenericRpcHandler:
    """Return the gRPC handlers of a service. Errors of its methods become statuses in the interceptor.

    Args:
        service: counts the calls, and refuses them while it is unavailable.
        name: full name of the gRPC service.
        methods: methods by name.
        always: names of methods that are answered while the service is unavailable, too.
    """
    handlers = {
        method_name: grpc.unary_unary_rpc_method_handler(_handler(service, method, always=method_name in always))
        for method_name, method in methods.items()
    }
    return grpc.method_handlers_generic_handler(name, handlers)


def _handler(
    service: InferenceService, method: Method, *, always: bool
) -> Callable[[bytes, grpc.aio.ServicerContext], Awaitable[bytes]]:
    async def handler(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
        service.begin_call(always=always)
        return await method(data, current_call())

    return handler
