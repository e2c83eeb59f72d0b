"""Claim: about 6 times the throughput of sentence-transformers in PyTorch, and 8 times that of infinity (engine torch).

    python -m benchmarks.serving_peers models --checkpoint path/to/all-MiniLM-L6-v2 --texts sentences.txt

All run the same checkpoint and texts, in turns, on the same cores; each server shares them with its client. infinity is
optional. It needs a virtual environment of its own, and must run before this starts:

    pip install 'infinity-emb[torch,server]'
    infinity_emb v2 --model-id path/to/all-MiniLM-L6-v2 --engine torch --device cpu --port 7997
    python -m benchmarks.serving_peers ... --infinity http://127.0.0.1:7997
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import sentence_transformers
import torch
import tyro

import bertline
from benchmarks.embed_load import EmbedLoad, LoadClient, read_texts
from benchmarks.infinity import Infinity
from benchmarks.server_process import running_server
from demo.server import one_line_errors
from tasks.machine import available_cpus
from training.bounds import COUNT, POSITIVE, check_numbers
from training.command import command, parse

BATCH_SIZES = (8, 16, 32, 64, 128)
NUM_ENCODED = 256
"""Texts in a call of `encode`, which sorts them by length."""
NUM_COMPARED = 64
"""Texts whose vectors are compared."""
BULK, SINGLE = "requests of 32, 8 in flight", "single texts, 64 in flight"


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """Command line."""

    models: Annotated[Path, tyro.conf.Positional]
    """Directory with one model of task embedding."""
    checkpoint: Path
    """Checkpoint that it was exported from: a folder of sentence-transformers."""
    texts: Path
    """File with one text per line, at least 256."""
    infinity: str | None = None
    """URL of a running infinity with the same checkpoint."""
    seconds: Annotated[float, POSITIVE] = 5.0
    """Seconds of each measurement."""
    rounds: Annotated[int, COUNT] = 5
    """Rounds of all measurements."""
    flags: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Server flag; repeat for several: `--flags=--poll-s=0 --flags=--max-queue-s=2`."""

    def __post_init__(self) -> None:
        check_numbers(self)


class SentenceTransformers:
    """Peer: sentence-transformers in this process, on all cores, with its best batch size.

    Args:
        checkpoint: folder of sentence-transformers.
        texts: to embed.
    """

    def __init__(self, checkpoint: Path, texts: list[str]) -> None:
        torch.set_num_threads(available_cpus())
        self._model = sentence_transformers.SentenceTransformer(str(checkpoint), device="cpu")
        self._texts = texts
        rates = {size: self.texts_per_s(2.0, batch_size=size) for size in BATCH_SIZES}
        self.batch_size = max(rates, key=lambda size: rates[size])

    def embed(self, texts: list[str], batch_size: int = 32) -> np.ndarray:
        """Return the vectors of texts, [texts, hidden] float32."""
        return self._model.encode(texts, batch_size=batch_size, show_progress_bar=False)

    def texts_per_s(self, seconds: float, *, batch_size: int | None = None) -> float:
        """Measure the throughput for some seconds."""
        self.embed(self._texts[:NUM_ENCODED])
        count, started = 0, time.perf_counter()
        while time.perf_counter() - started < seconds:
            first = count % (len(self._texts) - NUM_ENCODED + 1)
            self.embed(self._texts[first : first + NUM_ENCODED], batch_size or self.batch_size)
            count += NUM_ENCODED
        return count / (time.perf_counter() - started)


def cosines(vectors: np.ndarray, reference: np.ndarray) -> str:
    """Format the mean and the lowest cosine of the rows."""
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    found = (vectors * reference).sum(1) / norms
    return f"mean {found.mean():.4f}, lowest {found.min():.4f}"


def report(name: str, rates: Sequence[float], ours: Sequence[float]) -> None:
    """Print the throughput of a peer, and the ratio of ours to it."""
    times = [our_rate / rate for our_rate, rate in zip(ours, rates, strict=True)]
    print(
        f"{name:40} {statistics.median(rates):8,.0f} texts/s  Bertline {statistics.median(times):5.2f} times "
        f"({min(times):.2f}-{max(times):.2f})"
    )


@command
@one_line_errors()
def main() -> None:
    """Run the benchmark."""
    settings = parse(PeerSettings, "benchmarks.serving_peers", __doc__)
    texts = read_texts(settings.texts, NUM_ENCODED)
    infinity = Infinity(settings.infinity, texts) if settings.infinity else None
    torch_peer = SentenceTransformers(settings.checkpoint, texts)
    client = LoadClient()
    with running_server(settings.models, settings.flags) as server:
        compared, reference = texts[:NUM_COMPARED], torch_peer.embed(texts[:NUM_COMPARED])
        with bertline.Client(server.target) as embedder:
            print(f"cosine to PyTorch: Bertline {cosines(embedder.embed(compared, truncate=True), reference)}")
        load = EmbedLoad(target=server.target, texts=settings.texts, seconds=settings.seconds)
        bulk, single = replace(load, num_texts=32, num_in_flight=8), replace(load, num_in_flight=64)
        measures = {
            "Bertline, " + BULK: lambda: client.run(bulk).texts_per_s,
            "Bertline, " + SINGLE: lambda: client.run(single).texts_per_s,
            f"sentence-transformers, batches of {torch_peer.batch_size}": lambda: torch_peer.texts_per_s(load.seconds),
        }
        if infinity:
            print(f"cosine to PyTorch: infinity {cosines(infinity.embed(compared), reference)}")
            measures["infinity, " + BULK] = lambda: infinity.texts_per_s(bulk)
            measures["infinity, " + SINGLE] = lambda: infinity.texts_per_s(single)
        rounds = [{name: measure() for name, measure in measures.items()} for _ in range(settings.rounds)]
    client.close()
    for name in measures:
        ours = "Bertline, " + (SINGLE if name.endswith(SINGLE) else BULK)
        report(name, [found[name] for found in rounds], [found[ours] for found in rounds])


if __name__ == "__main__":
    main()
