"""Run honest traffic beside each attack in turn. A crash, a wrong or lost reply, or memory growth is a failure.

    python -m tests.serving.soak models --minutes 60

`models` is a folder with models `embed` (embedding) and `tag` (tagging). Honest callers send short and long requests
and compare each reply with that of the idle server; a job embeds a file again and again. Memory in the end is compared
with memory after a first round of all attacks, and that with memory before them, under honest traffic. Exits with 1 and
names the failures.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import numpy as np

from benchmarks.harness import ServerProcess, Worker, percentile, running_server
from bertline.v1 import encoder_pb2 as pb
from bertline.v1.encoder_pb2_grpc import EncoderStub
from tests.serving.withstands import ATTACKS, FLAGS, Attack, attack_for

WORDS = "the quick answer of a server in Berlin was that Angela Merkel met nobody in Paris on a rainy afternoon".split()
REFUSALS = {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
ATTACK_S, PAUSE_S, SETTLE_S = 15.0, 5.0, 30.0
"""Longest attack, shortest pause after it, and time after which free memory has been given back."""
ROUNDS = 2
"""Least number of rounds of all attacks; in a short test, each attack is shorter."""
MAX_GROWTH = 1.15
"""Largest ratio of memory in the end to memory after the first round: a leak grows with each round."""
MAX_KEPT_MB = 64
"""Largest growth in the first round. Python keeps about 35 MiB free (docs/explanation/limits.md)."""
NUM_CALLERS = 6
ROWS = 2000
"""Number of rows of the job's file."""


@dataclass
class Honest:
    """Outcome of the honest calls."""

    codes: Counter[str] = field(default_factory=Counter)
    wrong: int = 0
    """Replies that differ from those of the idle server."""
    short_s: list[float] = field(default_factory=list)
    """Seconds of successful short calls."""
    odd: set[str] = field(default_factory=set)
    """Method, status, seconds and details of calls that neither succeeded nor were refused."""


def _requests() -> list[tuple[str, pb.EmbedRequest | pb.TagRequest]]:
    source = random.Random(0)

    def text(words: int) -> str:
        return " ".join(source.choices(WORDS, k=words))

    embed, tag = pb.ModelRef(name="embed"), pb.ModelRef(name="tag")
    found: list[tuple[str, pb.EmbedRequest | pb.TagRequest]] = []
    for _ in range(10):
        found.append(("Embed", pb.EmbedRequest(texts=[text(4)], model=embed)))
        found.append(("Embed", pb.EmbedRequest(texts=[text(60) for _ in range(16)], model=embed, truncate=True)))
        found.append(("Tag", pb.TagRequest(inputs=[pb.TagInput(text=text(30))], model=tag)))
    found.append(("Embed", pb.EmbedRequest(texts=[text(5000)], model=embed, truncate=True)))
    found.append(
        ("Embed", pb.EmbedRequest(texts=[text(3) for _ in range(4000)], model=embed))
    )  # a long list, as clients send
    found.append(("Tag", pb.TagRequest(inputs=[pb.TagInput(text=text(20_000))], model=tag)))
    return found


def _answer(reply: pb.EmbedReply | pb.TagReply) -> np.ndarray:
    """Return the part of a reply that must be the same each time."""
    if isinstance(reply, pb.EmbedReply):
        return np.frombuffer(reply.vectors, "<f4")
    return np.array([[span.start, span.end] for result in reply.results for span in result.entities]).ravel()


def _call(connection: Connection, target: str) -> None:
    found = asyncio.run(_honest(connection, target))
    connection.send(found)
    connection.recv()


async def _honest(connection: Connection, target: str) -> Honest:
    found, requests = Honest(), _requests()
    async with grpc.aio.insecure_channel(target) as channel:
        stub = EncoderStub(channel)
        expected = [_answer(await getattr(stub, name)(request)) for name, request in requests]
        connection.send("ready")

        async def caller() -> None:
            while not connection.poll():
                number = random.randrange(len(requests))
                name, request = requests[number]
                started_s = time.monotonic()
                try:
                    reply = await getattr(stub, name)(request, timeout=10)
                except grpc.aio.AioRpcError as error:
                    code = error.code().name
                    found.codes[code] += 1
                    if code not in REFUSALS:
                        found.odd.add(f"{name}, {time.monotonic() - started_s:.1f} s: {code} {error.details()}")
                    await asyncio.sleep(0.2)
                    continue
                found.codes["OK"] += 1
                found.wrong += not np.allclose(_answer(reply), expected[number], rtol=1e-3, atol=1e-3)
                if number < 30 and number % 3 == 0:
                    found.short_s.append(time.monotonic() - started_s)
                await asyncio.sleep(random.random() * 0.3)

        await asyncio.gather(*(caller() for _ in range(NUM_CALLERS)))
    return found


def _job(target: str, folder: Path) -> str:
    """Embed a file; return the error in its output, or an empty string."""
    output = folder / "out.npy"
    command = [sys.executable, "-m", "bertline.cli", "embed", "-i", str(folder / "in.txt"), "-o", str(output)]
    ended = subprocess.run(
        [*command, "-t", target, "-m", "embed", "--force", "--patience", "600"], capture_output=True, check=False
    )
    if ended.returncode:
        return f"exit code {ended.returncode}: {ended.stderr.decode()[-300:]}"
    rows = np.load(output).shape[0]
    return "" if rows == ROWS else f"{rows} rows of {ROWS}"


def soak(models: Path, seconds: float) -> list[str]:
    """Run the soak test; return the failures in words."""
    failures: list[str] = []
    with (
        tempfile.TemporaryDirectory() as name,
        running_server(models, FLAGS) as server,
    ):
        folder = Path(name)
        folder.joinpath("in.txt").write_text("".join(f"{number} {' '.join(WORDS)}\n" for number in range(ROWS)))
        honest = Worker(_call, server.target)
        honest.receive()
        if wrong := _job(server.target, folder):
            failures.append(f"the job: {wrong}")
        time.sleep(2 * SETTLE_S)
        base_mb, warm_mb, most_mb, started_s, num_jobs = server.resident_mb, 0.0, 0.0, time.monotonic(), 0
        attacks = [attack for attack in ATTACKS if not attack.flags]
        attack_s = min(ATTACK_S, seconds / ROUNDS / len(attacks) - PAUSE_S)
        for number in itertools.count():
            if (elapsed_s := time.monotonic() - started_s) >= seconds and number >= ROUNDS * len(attacks):
                break
            if number == len(attacks):
                time.sleep(SETTLE_S)
                warm_mb = server.resident_mb
            attack = attacks[number % len(attacks)]
            most_mb = max(most_mb, _attack(attack, server, attack_s))
            if server.process.poll() is not None:
                return [*failures, f"the server ended with {server.process.returncode} during {attack.name}"]
            time.sleep(PAUSE_S)
            if attack.name == "idle":
                num_jobs += 1
                if wrong := _job(server.target, folder):
                    failures.append(f"the job: {wrong}")
            print(f"{elapsed_s:.0f} s: {attack.name}, {server.resident_mb:.0f} MiB (base {base_mb:.0f})", flush=True)
        time.sleep(SETTLE_S)
        after_mb = server.resident_mb
        honest.send("end")
        found: Honest = honest.receive()
        honest.close()
        median_ms, late_ms = (1e3 * percentile(found.short_s, ratio) for ratio in (0.5, 0.99))
        print(f"honest calls: {dict(found.codes)}; {num_jobs} jobs")
        print(f"short calls: p50 {median_ms:.1f} ms, p99 {late_ms:.0f} ms")
        print(
            f"memory: {base_mb:.0f} MiB before, {warm_mb:.0f} after a round, {most_mb:.0f} at most, "
            f"{after_mb:.0f} in the end"
        )
        if found.wrong:
            failures.append(f"{found.wrong} replies were not those of the idle server")
        failures += [f"an honest call ended, {what}" for what in sorted(found.odd)]
        if warm_mb > base_mb + MAX_KEPT_MB:
            failures.append(f"memory grew from {base_mb:.0f} to {warm_mb:.0f} MiB in the first round")
        if after_mb > MAX_GROWTH * warm_mb:
            failures.append(f"memory grew from {warm_mb:.0f} to {after_mb:.0f} MiB after the first round")
        server.process.terminate()
        if code := server.process.wait(60):
            failures.append(f"exit code {code} at SIGTERM")
    return failures


def _attack(attack: Attack, server: ServerProcess, seconds: float) -> float:
    """Attack for some seconds; return the maximum memory in MiB."""
    target = attack.target(server)
    attacker, most_mb, ends_s = Worker(attack_for, attack.name, target, seconds), 0.0, time.monotonic() + seconds
    while time.monotonic() < ends_s:
        most_mb = max(most_mb, server.resident_mb)
        time.sleep(0.1)
    attacker.receive()
    attacker.close()
    return most_mb


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.serving.soak", description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("--minutes", type=float, default=60.0)
    arguments = parser.parse_args()
    failures = soak(arguments.models, 60 * arguments.minutes)
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
