"""Messages of other protocols, built here so that their packages are not needed.

They live in a private descriptor pool, so that an application may load the original packages, too.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

HEALTH = "/grpc.health.v1.Health/"
"""Path prefix of the methods of the health service."""
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
"""Values of HealthCheckResponse.ServingStatus."""


def _message(name: str, **fields: tuple[int, str]) -> descriptor_pb2.DescriptorProto:
    """Return a message type.

    Args:
        name: name of the message.
        **fields: field name -> (number, type). The type is a scalar type, or the name of a message, which makes the
            field repeated.
    """
    message = descriptor_pb2.DescriptorProto(name=name)
    for field, (number, kind) in fields.items():
        if kind in ("string", "bytes", "int32"):
            message.field.add(name=field, number=number, type=f"TYPE_{kind.upper()}", label="LABEL_OPTIONAL")
        else:
            message.field.add(name=field, number=number, type_name=kind, label="LABEL_REPEATED")
    return message


def _classes() -> dict[str, Any]:
    """Return the message classes that the client needs of google.rpc and grpc.health.v1, by name.

    Sources: google/rpc/status.proto and google/rpc/error_details.proto of googleapis, grpc/health/v1/health.proto of
    grpc-proto. An enum is an int32 on the wire, a map is a repeated message of key and value.
    """
    package = "bertline.external"
    file = descriptor_pb2.FileDescriptorProto(name="bertline/external.proto", package=package, syntax="proto3")
    file.message_type.extend(
        [
            _message("Any", type_url=(1, "string"), value=(2, "bytes")),
            _message("Status", code=(1, "int32"), message=(2, "string"), details=(3, "Any")),
            _message("FieldViolation", field=(1, "string"), description=(2, "string")),
            _message("BadRequest", field_violations=(1, "FieldViolation")),
            _message("Entry", key=(1, "string"), value=(2, "string")),
            _message("ErrorInfo", reason=(1, "string"), domain=(2, "string"), metadata=(3, "Entry")),
            _message("HealthRequest", service=(1, "string")),
            _message("HealthReply", status=(1, "int32")),
        ]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{n}")) for n in names}


_messages = _classes()
Any_, Status = _messages["Any"], _messages["Status"]
BadRequest, ErrorInfo = _messages["BadRequest"], _messages["ErrorInfo"]
HealthRequest, HealthReply = _messages["HealthRequest"], _messages["HealthReply"]
