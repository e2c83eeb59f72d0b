"""Routing of gRPC calls to methods that know no gRPC: request and call -> serialised reply."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextvars import ContextVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from serving.core.calls import Call
from serving.core.service import InferenceService
from serving.endpoints.methods import Method
from serving.endpoints.wire import SerializedRequest

_current: ContextVar[Call] = ContextVar("call")
"""Call that the current asyncio task handles. Threads get the call as an argument."""

set_current_call = _current.set
current_call = _current.get


def route(
    service: InferenceService,
    descriptor: ServiceDescriptor,
    methods: Mapping[str, Method],
    *,
    always: Collection[str] = (),
) -> grpc.GenericRpcHandler:
    """Return the gRPC handlers of a service. Errors of its methods become statuses in the interceptor.

    Args:
        service: counts the calls, and refuses them while it is unavailable.
        descriptor: the gRPC service.
        methods: methods by name.
        always: names of methods that are answered while the service is unavailable, too.
    """

    def handler(name: str, method: Method) -> grpc.RpcMethodHandler:
        request_type = GetMessageClass(descriptor.methods_by_name[name].input_type)

        async def handle(data: bytes, context: grpc.aio.ServicerContext) -> bytes:
            service.begin_call(always=name in always)
            return await method(SerializedRequest(request_type, data), current_call())

        return grpc.unary_unary_rpc_method_handler(handle)

    handlers = {name: handler(name, method) for name, method in methods.items()}
    return grpc.method_handlers_generic_handler(descriptor.full_name, handlers)
