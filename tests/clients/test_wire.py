"""Messages of earlier releases, replayed to the current client."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet

from bertline import Client
from bertline.v1 import encoder_pb2 as pb
from tests.clients.wire.plain import plain
from tests.clients.wire.record import CALLS

RECORDINGS = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in Path(__file__).with_name("wire").glob("*.json")
}
EACH_CALL = pytest.mark.parametrize(
    ("release", "number"),
    [(release, number) for release, recording in RECORDINGS.items() for number in range(len(recording["calls"]))],
)


class Replay(grpc.GenericRpcHandler):
    """Handler that answers every call with one stored reply, without knowing its messages."""

    def __init__(self, reply: bytes) -> None:
        self.calls: list[tuple[str, bytes]] = []
        self._reply = reply

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        if "Health" in details.method:
            return None  # as servers of other kinds

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.calls.append((details.method, request))
            return self._reply

        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
def call(release: str, number: int) -> dict[str, Any]:
    return RECORDINGS[release]["calls"][number]


@pytest.fixture
def replay(call: dict[str, Any]) -> Iterator[tuple[Replay, str]]:
    handler = Replay(base64.b64decode(call["reply"]))
    server = grpc.server(ThreadPoolExecutor(2), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield handler, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def pool_of(release: str) -> descriptor_pool.DescriptorPool:
    """Return the messages of a release, apart from the current ones."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(base64.b64decode(RECORDINGS[release]["descriptor"]))
    return pool


def has_unknown(message: Any) -> bool:
    """Return whether a message, or one in it, has fields that its descriptor does not know."""
    if len(UnknownFieldSet(message)):
        return True
    parts = [
        part
        for field, value in message.ListFields()
        if field.message_type
        for part in ([value] if hasattr(value, "ListFields") else value)
    ]
    return any(map(has_unknown, parts))


def still_holds(now: Any, before: Any) -> bool:
    """Return whether a result equals the earlier one, except for added fields."""
    if isinstance(before, dict):
        return all(name in now and still_holds(now[name], value) for name, value in before.items())
    if isinstance(before, list):
        return len(now) == len(before) and all(map(still_holds, now, before))
    return now == before


@EACH_CALL
def test_the_client_understands_the_release(call: dict[str, Any], replay: tuple[Replay, str], release: str) -> None:
    """Stored replies give the same results, and the old server's messages can hold the client's requests."""
    handler, target = replay
    with Client(target, check_health=False) as client:
        result = getattr(client, call["method"])(*call["arguments"], **call["options"])
    ((path, raw),) = handler.calls
    message = pool_of(release).FindServiceByName("bertline.v1.Encoder").methods_by_name[call["rpc"]].input_type
    sent, stored = map(message_factory.GetMessageClass(message).FromString, (raw, base64.b64decode(call["request"])))

    assert path == f"/bertline.v1.Encoder/{call['rpc']}"
    assert (sent, has_unknown(sent)) == (stored, False)
    assert still_holds(plain(result), call["result"])


@pytest.mark.parametrize("release", RECORDINGS)
def test_nothing_was_renumbered(release: str) -> None:
    """Fields and enum values of the release keep their number, type and meaning; only field presence may be added."""
    before = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(RECORDINGS[release]["descriptor"]))
    now = descriptor_pb2.FileDescriptorProto.FromString(pb.DESCRIPTOR.serialized_pb)
    kept = set(fields_of(now))
    values = {(enum.name, value.name, value.number) for enum in now.enum_type for value in enum.value}

    assert set(fields_of(before)) <= kept
    assert {(enum.name, value.name, value.number) for enum in before.enum_type for value in enum.value} <= values


def fields_of(file: descriptor_pb2.FileDescriptorProto) -> Iterator[tuple[str, bytes]]:
    for message in file.message_type:
        real = len(message.oneof_decl) - sum(field.proto3_optional for field in message.field)
        for field in message.field:
            if field.HasField("oneof_index") and field.oneof_index >= real:
                field.ClearField("oneof_index")
            field.ClearField("proto3_optional")
            yield message.name, field.SerializeToString()


def test_every_rpc_and_field_of_a_request_is_recorded() -> None:
    """The recording has every RPC and every field of a request."""
    recorded = max(RECORDINGS)
    calls = RECORDINGS[recorded]["calls"]
    rpcs = pb.DESCRIPTOR.services_by_name["Encoder"].methods_by_name
    for name, rpc in rpcs.items():
        requests = [
            message_factory.GetMessageClass(rpc.input_type).FromString(base64.b64decode(call["request"]))
            for call in calls
            if call["rpc"] == name
        ]

        assert requests
        assert {field.name for request in requests for field, _ in request.ListFields()} == set(
            rpc.input_type.fields_by_name
        )

    assert len(CALLS) == len(calls)
