"""Requests are parsed like protobuf does, in little time and memory for any content."""

import itertools
import random
import re
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import DecodeError

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.core.errors import ExpiredError, InvalidRequestError
from serving.core.limits import MAX_WORDS, ParseLimits
from serving.endpoints import wire
from serving.endpoints.methods import SERVICE
from serving.endpoints.wire import parse
from serving.open_inference.service import SERVICE as OPEN_INFERENCE
from serving.open_inference.v2 import service_pb2 as oip
from tests.serving.models import write_model
from tests.serving.mutations import messages, varint
from tests.serving.open_inference.messages import infer_request
from tests.serving.processes import listening
from tests.serving.reliability import open_channel

MESSAGE_BYTES = 4 * 2**20 - 100
MAX_STEP_S = 0.05
"""Longest wait of another thread that only wants its turn; 0.005 on a quiet machine."""


def request_type(path):
    """Return the request type of a method of either service; None for an unknown method."""
    name = path.rpartition("/")[2]
    return getattr(oip if "inference" in path else pb, f"{name}Request", None)


@pytest.mark.parametrize("piece_bytes", [1, 7, 100])
def test_pieces_make_the_same_message(monkeypatch, piece_bytes):
    """Parsing in pieces of any size gives the same message as protobuf, or the same refusal."""
    monkeypatch.setattr(wire, "PIECE_BYTES", piece_bytes)
    num_parsed = num_refused = 0
    for path, data in messages(random.Random(piece_bytes), 1000):
        if (kind := request_type(path)) is None:
            continue
        try:
            expected = kind.FromString(data)
        except DecodeError:
            with pytest.raises(InvalidRequestError):
                parse(kind, data)
            num_refused += 1
        else:
            assert parse(kind, data, ParseLimits(max_fields=10**9)) == expected
            num_parsed += 1

    assert min(num_parsed, num_refused) > 100


def test_packed_fields_are_cut_between_numbers(monkeypatch):
    """Packed fields are cut between numbers of any size."""
    monkeypatch.setattr(wire, "PIECE_BYTES", 10)
    values = [0, 1, 127, 128, 2**31, 2**63 - 1, -1] * 20
    request = infer_request("embedder", input_ids=[[1]])
    request.inputs[0].contents.int64_contents.extend(values)
    request.inputs[0].shape.extend(values)

    assert parse(oip.ModelInferRequest, request.SerializeToString()) == request


def field(number, content):
    """Serialise a field: tag, length, content."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def many(item):
    """Repeat a field as often as a message of the default size holds."""
    return item * (MESSAGE_BYTES // len(item))


def parameters(count):
    """Serialise different parameters that are as short as possible."""
    names = ((33 + i % 90, 33 + i // 90 % 90, 33 + i // 8100) for i in range(count))
    return b"".join(field(4, field(1, bytes(name))) for name in names)


HOSTILE = {
    "inputs": (oip.ModelInferRequest, lambda: many(b"\x2a\x00")),
    "outputs": (oip.ModelInferRequest, lambda: many(b"\x32\x00")),
    "raw_input_contents": (oip.ModelInferRequest, lambda: many(b"\x3a\x00")),
    "parameters": (oip.ModelInferRequest, lambda: parameters(500_000)),
    "parameters of an input": (oip.ModelInferRequest, lambda: field(5, parameters(500_000))),
    "parameters of inputs": (oip.ModelInferRequest, lambda: field(5, parameters(4000)) * 140),
    "bytes_contents": (oip.ModelInferRequest, lambda: field(5, field(5, many(b"\x42\x00")))),
    "pairs": (pb.ClassifyRequest, lambda: many(b"\x12\x00")),
    "texts": (pb.EmbedRequest, lambda: many(b"\x12\x00")),
    "targets": (pb.FillMaskRequest, lambda: many(b"\x2a\x00")),
    "choices": (pb.ChooseRequest, lambda: field(2, many(b"\x1a\x00"))),
    "models": (pb.EmbedRequest, lambda: many(b"\x0a\x00")),
    "unknown fields": (pb.EmbedRequest, lambda: many(b"\x78\x01")),
    "numbers that are not packed": (oip.ModelInferRequest, lambda: field(5, field(5, many(b"\x18\x01")))),
    "contexts": (pb.AnswerRequest, lambda: field(2, many(b"\x12\x00"))),
    "words": (pb.TagRequest, lambda: field(2, many(b"\x12\x00"))),
    "words of inputs": (pb.TagRequest, lambda: field(2, b"\x12\x00" * 1000) * 300),
}
HARMLESS = {
    "words": (pb.TagRequest, lambda: field(2, b"\x12\x01a" * MAX_WORDS)),
    "inputs in words": (pb.TagRequest, lambda: field(2, b"\x12\x01a" * 30) * 8000),
    "texts": (pb.EmbedRequest, lambda: many(field(2, b"a" * 500))),
    "one text": (pb.EmbedRequest, lambda: field(2, many("\u5b57".encode()))),
    "numbers": (oip.ModelInferRequest, lambda: field(5, field(5, field(3, many(b"\x01"))))),
    "shapes": (oip.ModelInferRequest, lambda: field(5, field(3, many(b"\x01")))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_too_many_parts(name):
    """Messages with too many fields are refused before they take time or memory."""
    kind, make = HOSTILE[name]
    data = make()
    started_s = time.process_time()
    with pytest.raises(InvalidRequestError, match=r"more than \d+ (values, nested ones included|words);") as caught:
        parse(kind, data)

    assert caught.value.violations[0].field in {*kind.DESCRIPTOR.fields_by_name, "unknown fields"}
    assert time.process_time() - started_s < 1


@pytest.mark.parametrize("name", HARMLESS)
def test_small_content_is_not_limited(name):
    """Content that takes little memory is not limited in number."""
    kind, make = HARMLESS[name]
    data = make()

    assert parse(kind, data) == kind.FromString(data)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), [*HOSTILE.values(), *HARMLESS.values()], ids=[*HOSTILE, *HARMLESS])
def test_parsing_lets_other_threads_run(kind, make):
    """Parsing any message lets other threads run."""
    data = make()
    slowest = min(_slowest_turn(kind, data) for _ in range(5))

    assert slowest < MAX_STEP_S


def _slowest_turn(kind, data):
    turns, ended = [], threading.Event()

    def take_turns():
        while not ended.is_set():
            turns.append(time.monotonic())
            time.sleep(0.0005)

    thread = threading.Thread(target=take_turns)
    thread.start()
    time.sleep(0.01)
    with suppress(InvalidRequestError):
        parse(kind, data)
    ended.set()
    thread.join()
    return max(after - before for before, after in itertools.pairwise(turns))


def test_parsing_stops_when_the_caller_has_left():
    """Parsing stops when the caller has left."""

    def left():
        raise ExpiredError

    for kind, make in (HARMLESS["words"], HOSTILE["texts"]):
        data = make()
        with pytest.raises(ExpiredError):
            parse(kind, data, ParseLimits(check=left))


def test_parsing_stops_when_the_call_is_cancelled(server, monkeypatch):
    """Parsing threads learn that a call was cancelled, and stop."""
    reading, cancelled, stopped = threading.Event(), threading.Event(), threading.Event()

    def read(kind, data, limits):
        reading.set()
        cancelled.wait(10)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                limits.check()
            except ExpiredError:
                stopped.set()
                raise
            time.sleep(0.01)

    monkeypatch.setattr("serving.endpoints.wire.parse", read)
    call = server.stub.Embed.future(pb.EmbedRequest(texts=["cat " * 100_000]))
    assert reading.wait(10)
    call.cancel()
    cancelled.set()

    assert stopped.wait(10)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_attacks(tmp_path, name):
    """Eight hostile messages at the same time take little memory, and other calls are answered."""
    kind, make = HOSTILE[name]
    data = make()
    service = OPEN_INFERENCE if kind is oip.ModelInferRequest else SERVICE
    write_model(tmp_path)
    with listening(tmp_path) as (process, target, _), ExitStack() as stack:
        stub = encoder_pb2_grpc.EncoderStub(stack.enter_context(open_channel(target)))
        stub.Embed(pb.EmbedRequest(texts=["cat"]))
        before = memory_mib(process.pid)
        channels = [stack.enter_context(open_channel(target)) for _ in range(8)]
        path = f"/{service}/{kind.DESCRIPTOR.name.removesuffix('Request')}"
        calls = [channel.unary_unary(path).future(data, timeout=20) for channel in channels]
        seconds = []
        while not all(call.done() for call in calls):
            started = time.monotonic()
            stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=5)
            seconds.append(time.monotonic() - started)

        assert {call.code() for call in calls} == {grpc.StatusCode.INVALID_ARGUMENT}
        assert max(seconds) < 1
        assert memory_mib(process.pid) - before < 128


def memory_mib(pid):
    """Return the peak memory of a process."""
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) / 1024
