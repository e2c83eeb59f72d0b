"""Requests of the maximum length from several callers, together with short queries, on a server process."""

import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from tests.serving.models import write_model
from tests.serving.processes import listening
from tests.serving.reliability import client_process, open_channel

CALLER = """
import sys
import grpc
target, method, path = sys.argv[1:]
with open(path, "rb") as file, grpc.insecure_channel(target) as channel:
    try:
        channel.unary_unary(f"/bertline.v1.Encoder/{method}")(file.read(), timeout=100)
    except grpc.RpcError as error:  # the queue or the number of windows is refused, as the machine's speed decides
        too_long = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT}
        sys.exit(0 if error.code() in too_long else f"{error.code()}: {error.details()}")
"""
LONG = {
    "full stops": "." * 990_000,
    "one word": "a" * 990_000,
    "short words": "of cat dogs " * 82_500,
    "special tokens": "[SEP]" * 198_000,
    "Chinese": "中" * 330_000,
    "emoji": "🙂" * 247_500,
    "marks": "a" + "\u0301" * 490_000,
}
REQUESTS = {
    "Tag": lambda text: pb.TagRequest(inputs=[pb.TagInput(text=text)] * 4),
    "Answer": lambda text: pb.AnswerRequest(inputs=[pb.AnswerInput(question="who", contexts=[text] * 4)]),
    "Embed": lambda text: pb.EmbedRequest(texts=[text] * 4, windows=True),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models")
    for name, task in {"tagger": "tagging", "reader": "spans", "embedder": "embedding"}.items():
        write_model(directory, name, task=task)
    return directory


def resident_mib(process):
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "text"), [*product(["Tag"], LONG), *product(["Answer", "Embed"], ["full stops", "emoji"])]
)
def test_three_of_the_longest_requests(models, tmp_path, method, text):
    """Requests of the maximum length take little memory and do not block a short query."""
    path = tmp_path / "request"
    path.write_bytes(REQUESTS[method](LONG[text]).SerializeToString())
    with listening(models, "--max-queue-s", 0.05) as (process, target, _), open_channel(target) as channel:
        embed = encoder_pb2_grpc.EncoderStub(channel).Embed
        waits, memory, done = [], [], threading.Event()

        def ask():
            started_s = time.perf_counter()
            with suppress(grpc.RpcError):  # the queue is short
                embed(pb.EmbedRequest(texts=["the cat"]), timeout=30, wait_for_ready=True)
            waits.append(time.perf_counter() - started_s)

        def watch():
            while not done.wait(0.01):
                memory.append(resident_mib(process))

        for _ in range(20):
            ask()
        before, waits[:] = resident_mib(process), []
        with ThreadPoolExecutor() as threads:
            watching = threads.submit(watch)
            with (
                client_process(CALLER, target, method, path) as first,
                client_process(CALLER, target, method, path) as second,
                client_process(CALLER, target, method, path) as third,
            ):
                try:
                    while None in [item.poll() for item in (first, second, third)]:
                        ask()
                        time.sleep(0.05)
                finally:
                    done.set()
            watching.result()

    assert [item.returncode for item in (first, second, third)] == [0, 0, 0]
    assert max(memory) - before < 128
    assert statistics.median(waits) < 0.1
    assert max(waits) < 1
