"""Attack a server and measure the latency of a bystander: the table in docs/explanation/robustness.md.

    python -m tests.serving.withstands models
    python -m tests.serving.withstands models --only messages-without-end,rapid-reset --seconds 5

With 512 MiB for the server, which a kill ends (cgroups version 2; in version 1 the limit is memory.limit_in_bytes):

    mkdir /sys/fs/cgroup/attacked && echo 512M > /sys/fs/cgroup/attacked/memory.max
    python -m tests.serving.withstands models --cgroup /sys/fs/cgroup/attacked --buffer-bytes 67108864

Flags of the server may follow.

A bystander sends a short Embed each 0.1 s. Server, bystander and attacker share the cores of this machine; all traffic
is on loopback and bounded. `models` is a folder with models `embed` (embedding) and `tag` (tagging), and one for masks.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import grpc

from benchmarks.harness import ServerProcess, Worker, percentile, running_server
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from serving.open_inference.v2 import service_pb2
from tests.serving import http_attacks
from tests.serving.attacks import CHECK, EMBED, WATCH, never_end, read_nothing, reset_rapidly, say_nothing
from tests.serving.http2 import Connection as Http2
from tests.serving.mutations import varint

MIB = 2**20
INFER = "/inference.GRPCInferenceService/ModelInfer"
TAG = "/bertline.v1.Encoder/Tag"
SETTLE_S = 30.0
FLAGS = ("--http-port=0", "--log-calls=none", "--log-level=error")
"""Flags of the server in all attacks."""


@dataclass(frozen=True)
class Attack:
    """Attack for some seconds, in a separate process."""

    name: str
    what: str
    bound: str
    """Defence of the server."""
    run: Callable[[str, float], None]
    """Function of the target and the seconds to attack."""
    flags: tuple[str, ...] = ()
    """Flags of the server."""
    is_http: bool = False
    """True to attack the HTTP port, whose address `run` then gets."""

    def target(self, server: ServerProcess) -> str:
        """Return the address of the attacked port."""
        return server.http.removeprefix("http://").rstrip("/") if self.is_http else server.target


def _calls(target: str, path: str, message: bytes, count: int, seconds: float, *, connections: int = 1) -> None:
    """Make `count` concurrent calls, again and again."""
    ends_s = time.monotonic() + seconds
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    channels = [grpc.insecure_channel(target, options=options) for _ in range(connections)]
    methods = [channel.unary_unary(path) for channel in channels]

    def work(number: int) -> None:
        method = methods[number % connections]
        while (left_s := ends_s - time.monotonic()) > 0:
            started_s = time.monotonic()
            try:
                method(message, timeout=left_s)
            except grpc.RpcError:
                time.sleep(max(0.0, min(0.05, ends_s - time.monotonic()) - (time.monotonic() - started_s)))

    threads = [threading.Thread(target=work, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for channel in channels:
        channel.close()


def _embed(texts: list[str], **options: bool) -> bytes:
    return pb.EmbedRequest(texts=texts, model=pb.ModelRef(name="embed"), **options).SerializeToString()


def full_stops(target: str, seconds: float) -> None:
    """Three callers with texts of full stops, each of which is a token."""
    texts = [pb.TagInput(text="." * 990_000) for _ in range(4)]
    _calls(target, TAG, pb.TagRequest(inputs=texts).SerializeToString(), 3, seconds)


def empty_inputs(target: str, seconds: float) -> None:
    """Eight callers with two million empty tensors."""
    _calls(target, INFER, b"\x0a\x05embed" + b"\x2a\x00" * 2_000_000, 8, seconds)


def empty_words(target: str, seconds: float) -> None:
    """Four callers with two million empty words."""
    message = pb.TagRequest(inputs=[pb.TagInput(words=[""] * 2_000_000)], model=pb.ModelRef(name="tag"))
    _calls(target, TAG, message.SerializeToString(), 4, seconds)


def large_messages(target: str, seconds: float) -> None:
    """Three hundred complete messages of 4 MB at the same time."""
    _calls(target, EMBED, _embed(["a" * 100_000] * 40), 300, seconds, connections=10)


def long_tensors(target: str, seconds: float) -> None:
    """Four callers with a million token ids each."""
    tensor = service_pb2.ModelInferRequest.InferInputTensor(name="input_ids", datatype="INT64", shape=[1, 500_000])
    request = service_pb2.ModelInferRequest(model_name="embed", inputs=[tensor])
    request.raw_input_contents.append(bytes(8 * 500_000))
    _calls(target, INFER, request.SerializeToString(), 4, seconds)


def watches(target: str, seconds: float) -> None:
    """Health watches of services with names of 500 kB."""
    name = b"\x0a" + varint(500_000) + b"a" * 500_000
    with Http2(target) as connection:
        ends_s = time.monotonic() + seconds
        for _ in range(2500):
            try:
                connection.call(WATCH, name)
            except OSError:
                break
            if time.monotonic() > ends_s:
                break
        time.sleep(max(0.0, ends_s - time.monotonic()))


def readers_of_nothing(target: str, seconds: float) -> None:
    """Twelve connections that request 8 MB with 24 kB and do not read."""
    message = pb.EmbedRequest(texts=["a"] * 8000, model=pb.ModelRef(name="embed")).SerializeToString()
    http_attacks.together(12, lambda: read_nothing(target, EMBED, message, 20, seconds=seconds))


def resets(target: str, seconds: float) -> None:
    """Calls that are cancelled as soon as they start, from new connections if the old one is closed."""
    ends_s = time.monotonic() + seconds
    while (left_s := ends_s - time.monotonic()) > 0:
        try:
            reset_rapidly(target, seconds=left_s)
        except OSError:
            time.sleep(0.1)


def failing_calls(target: str, seconds: float) -> None:
    """Calls that fail, one log line each."""
    _calls(target, EMBED, b"\xff" * 20, 8, seconds)


def bulk(target: str, seconds: float) -> None:
    """Bulk requests from as many callers as on a busy afternoon."""
    _calls(
        target,
        EMBED,
        _embed(["what a server computes for somebody else " * 30] * 32, truncate=True),
        64,
        seconds,
        connections=64,
    )


def slow_metrics(target: str, seconds: float) -> None:
    """Silent connections to the gRPC port."""
    say_nothing(target, 400, seconds)


ATTACKS = [
    Attack("idle", "nothing", "", lambda target, seconds: time.sleep(seconds)),
    Attack(
        "messages-without-end",
        "2,000 streams on a connection, each with most of a message of 4 MB and never its end",
        "half of `--buffer-bytes`; 32 KiB of a message are taken before its turn",
        lambda target, seconds: never_end(target, 2000, 4 * MIB, seconds=seconds),
    ),
    Attack(
        "health-without-end",
        "the same through `Health/Check`, which asks for no token",
        "the same",
        lambda target, seconds: never_end(target, 2000, 4 * MIB, path=CHECK, seconds=seconds),
        ("--open-health",),
    ),
    Attack("watches", "2,500 `Health/Watch` with names of 500 kB", "4 KiB a name, 32 watches a connection", watches),
    Attack(
        "large-messages",
        "300 complete messages of 4 MB at the same time, over and over",
        "half of `--buffer-bytes`",
        large_messages,
    ),
    Attack(
        "readers-of-nothing",
        "12 connections that ask for 8 MB with 24 kB, and read nothing",
        "half of `--buffer-bytes`; closed after `--keepalive-timeout-s` where others need the room",
        readers_of_nothing,
    ),
    Attack("full-stops", "3 `Tag` at a time of 4 x 990,000 full stops", "texts become tokens in pieces", full_stops),
    Attack(
        "empty-inputs",
        "8 `ModelInfer` at a time of 2,000,000 empty inputs",
        "counted before they are parsed",
        empty_inputs,
    ),
    Attack("empty-words", "4 `Tag` at a time of 2,000,000 empty words", "262,144 words a request", empty_words),
    Attack(
        "long-tensors", "4 `ModelInfer` at a time of a sequence of 500,000 ids", "refused by its shape", long_tensors
    ),
    Attack("rapid-reset", "calls cancelled immediately, 10,000 a second", "the connection is closed", resets),
    Attack("failing-calls", "calls that fail, as fast as 8 callers can", "50 lines of the log a second", failing_calls),
    Attack("silent-connections", "400 connections that say nothing", "a handshake ends after its time", slow_metrics),
    Attack("bulk", "64 callers with 32 long texts each", "callers share the cores", bulk),
    *(
        Attack(f"http-{name}", f"HTTP: {what}", bound, run, is_http=True)
        for name, what, bound, run in [
            (
                "compressed-objects",
                "4 bodies at a time of 4 KB, which unpack to 1.4 million `{}`",
                "values are counted before they are made",
                http_attacks.compressed_objects,
            ),
            (
                "empty-objects",
                "4 bodies at a time of 4 MB, a million `{}` each",
                "the same",
                http_attacks.empty_objects,
            ),
            (
                "strange-values",
                "2 bodies at a time of 4 MB of unknown fields, arrays, numbers, keys and escapes",
                "the same; parsed in pieces of 32 KiB",
                http_attacks.strange_values,
            ),
            (
                "full-stops",
                "2 `tokenize` at a time of 4 x 990,000 full stops",
                "524,288 tokens a reply",
                http_attacks.full_stops,
            ),
            (
                "token-ids",
                "16 requests at a time of a long row of token ids and 8,000 short ones",
                "rows are not padded",
                http_attacks.token_ids,
            ),
            (
                "masks",
                "4 `fill-mask` at a time, 8,000 tokens for each of 32 and of 130 masks",
                "262,144 scores a reply",
                http_attacks.masks,
            ),
            (
                "large-replies",
                "12 connections that ask for vectors of 1,000 texts (5 MB), each in 3.5 MB, and read nothing",
                "reserved before the work; one request of a connection at a time",
                http_attacks.large_replies,
            ),
            (
                "pages",
                "pipelined requests for the page's files, without a token, and nobody reads",
                "one request of a connection at a time",
                http_attacks.pages,
            ),
            (
                "heads",
                "500 connections at a time with heads of 32 KB that do not end",
                "32 KiB and 128 headers; counted from 4 KiB on",
                http_attacks.heads,
            ),
            ("chunks", "bodies in chunks of a byte, and with endless extensions", "lines count", http_attacks.chunks),
            (
                "upgrades",
                "4 requests at a time that ask for HTTP/2",
                "declined: answered in HTTP/1.1",
                http_attacks.upgrades,
            ),
        ]
    ),
]


@dataclass
class Noticed:
    """Latencies and statuses that the bystander measured."""

    codes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


def _stand_by(connection: Connection, target: str) -> None:
    """Send a short query each 0.1 s until stopped."""
    found = Noticed()
    with grpc.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = EncoderStub(channel)
        request = pb.EmbedRequest(texts=["how far is it"], model=pb.ModelRef(name="embed"))
        grpc.channel_ready_future(channel).result(30)
        stub.Embed(request)
        connection.send("ready")
        while not connection.poll():
            started_s = time.monotonic()
            code = stub.Embed.future(request, timeout=10).code()
            found.codes[code.name] += 1
            found.seconds.append(time.monotonic() - started_s)
            time.sleep(max(0.0, 0.1 - found.seconds[-1]))
    connection.recv()
    connection.send(found)
    connection.recv()


def attack_for(connection: Connection, name: str, target: str, seconds: float) -> None:
    """Run an attack in this process, report its end, and wait for the reply."""
    next(item for item in ATTACKS if item.name == name).run(target, seconds)
    connection.send("done")
    connection.recv()


@dataclass(frozen=True)
class Row:
    """Measurements of one attack."""

    attack: Attack
    noticed: Noticed
    before_mb: float
    most_mb: float
    after_mb: float

    def __str__(self) -> str:
        slowest_ms, median_ms = 1e3 * max(self.noticed.seconds), 1e3 * percentile(self.noticed.seconds, 0.5)
        failed = {code: count for code, count in self.noticed.codes.items() if code != "OK"}
        answered = f"{self.noticed.codes['OK']} of {self.noticed.codes.total()}{f' {failed}' if failed else ''}"
        grown = f"{self.most_mb - self.before_mb:+.0f} MiB, {self.after_mb - self.before_mb:+.0f} after"
        cells = self.attack.what, self.attack.bound, f"{median_ms:.1f} ms", f"{slowest_ms:.0f} ms", answered, grown
        return f"| {' | '.join(cells)} |"


def measure(
    models: Path,
    attack: Attack,
    seconds: float,
    settle_s: float,
    *,
    flags: Sequence[str] = (),
    cgroup: Path | None = None,
) -> Row:
    """Attack a new server, in a cgroup if one is given.

    Raises:
        ChildProcessError: if the server ended.
    """
    prefix = ("sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(cgroup)) if cgroup else ()
    with running_server(models, (*attack.flags, *flags, *FLAGS), prefix=prefix) as server:
        bystander = Worker(_stand_by, server.target)
        bystander.receive()
        time.sleep(2)
        before_mb, sizes = server.resident_mb, [server.resident_mb]
        ended = threading.Event()
        watching = threading.Thread(target=_sample, args=(server, sizes, ended))
        watching.start()
        attacker = Worker(attack_for, attack.name, attack.target(server), seconds)
        attacker.receive()
        bystander.send("end")
        noticed = bystander.receive()
        attacker.close()
        bystander.close()
        ended.set()
        watching.join()
        time.sleep(settle_s if attack.name != "idle" else 0)
        if (code := server.process.poll()) is not None:
            raise ChildProcessError(f"the server ended with exit code {code}")
        return Row(attack, noticed, before_mb, max(sizes), server.resident_mb)


def _sample(server: ServerProcess, sizes: list[float], ended: threading.Event) -> None:
    while not ended.wait(0.02) and server.process.poll() is None:
        sizes.append(server.resident_mb)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.serving.withstands", description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--only", default="", help="names of attacks, with commas between them")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds until memory is looked at again")
    parser.add_argument("--cgroup", type=Path, help="folder of a cgroup with a memory limit, to run the server in")
    arguments, flags = parser.parse_known_args()
    names = set(filter(None, arguments.only.split(",")))
    if unknown := names - {item.name for item in ATTACKS}:
        parser.error(f"no such attack: {', '.join(sorted(unknown))} (there are {', '.join(a.name for a in ATTACKS)})")
    print("| attack | bound | bystander: median | slowest | answered | memory |\n|---|---|---|---|---|---|")
    for attack in ATTACKS:
        if not names or attack.name in names:
            try:
                row: object = measure(
                    arguments.models, attack, arguments.seconds, arguments.settle, flags=flags, cgroup=arguments.cgroup
                )
            except ChildProcessError as error:
                row = f"| {attack.what} | {error} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
