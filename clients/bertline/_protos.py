"""Messages of other protocols, without a dependency on their distributions.

The pool is private, so that an application may load the originals.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

HEALTH = "/grpc.health.v1.Health/"
"""Where the methods of the health service are."""
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""What a HealthResponse may say."""


def _message(name: str, **fields: tuple[int, str]) -> descriptor_pb2.DescriptorProto:
    """A message from field name -> (number, type); the name of a message as type means a repeated one."""
    message = descriptor_pb2.DescriptorProto(name=name)
    for field, (number, kind) in fields.items():
        if kind in ("string", "bytes", "int32"):
            message.field.add(name=field, number=number, type=f"TYPE_{kind.upper()}", label="LABEL_OPTIONAL")
        else:
            message.field.add(name=field, number=number, type_name=kind, label="LABEL_REPEATED")
    return message


def _classes() -> dict[str, Any]:
    """What is needed of google.rpc.Status, google.rpc.BadRequest and grpc.health.v1.

    Sources: google/rpc/status.proto and google/rpc/error_details.proto of googleapis, grpc/health/v1/health.proto of
    grpc-proto, whose enum is an int32 on the wire.
    """
    file = descriptor_pb2.FileDescriptorProto(name="bertline/others.proto", package="bertline.others", syntax="proto3")
    file.message_type.extend(
        [
            _message("Any", type_url=(1, "string"), value=(2, "bytes")),
            _message("Status", code=(1, "int32"), message=(2, "string"), details=(3, "Any")),
            _message("FieldViolation", field=(1, "string"), description=(2, "string")),
            _message("BadRequest", field_violations=(1, "FieldViolation")),
            _message("HealthRequest", service=(1, "string")),
            _message("HealthReply", status=(1, "int32")),
        ]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"bertline.others.{n}")) for n in names}


_found = _classes()
Any_, Status, BadRequest = _found["Any"], _found["Status"], _found["BadRequest"]
HealthRequest, HealthReply = _found["HealthRequest"], _found["HealthReply"]
