"""Check that a server's memory does not grow under texts of random lengths."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.embed_load import EmbedLoad, LoadClient
from benchmarks.server_process import ServerProcess, embedding_model, running_server
from tasks.model_directory import read_model_directory
from tasks.tokenizer import Tokenizer

LIMIT = 1.15
"""Allowed ratio of memory at the end to memory after warm-up."""
SAMPLE_S = 2.0
NUM_TEXTS = 20_000
ROWS = 4
"""Texts of each length in the warm-up. Their order is random, so that batches of all shapes occur."""
COLOURS = ("#3b82f6", "#e8833a")


@dataclass(frozen=True)
class MemoryGrowth:
    """Memory of a server over time, after warm-up."""

    name: str
    num_texts: int
    seconds: list[float]
    resident_mb: list[float]

    @property
    def ratio(self) -> float:
        """Ratio of memory at the end to memory at the start."""
        return self.resident_mb[-1] / self.resident_mb[0]

    @property
    def is_flagged(self) -> bool:
        """True if the ratio is above LIMIT."""
        return self.ratio > LIMIT

    def __str__(self) -> str:
        verdict = f"grows (above {LIMIT})" if self.is_flagged else f"does not grow (at most {LIMIT})"
        return (
            f"{self.name}: {self.resident_mb[0]:.0f} -> {self.resident_mb[-1]:.0f} MB in {self.seconds[-1]:.0f} s "
            f"({self.num_texts:,} texts), at most {max(self.resident_mb):.0f}; {self.ratio:.2f} times: {verdict}"
        )


@dataclass(frozen=True, kw_only=True)
class MemoryCheck:
    """Check of a server's memory."""

    models: Path
    texts: Path
    """Text file that the texts to send are cut from."""
    warm_up_s: float
    flags: Sequence[str] = ()
    """Flags of the server."""

    def run(self, module: str, seconds: float) -> MemoryGrowth:
        """Warm up a server, load it with texts of random lengths up to the model's maximum, and record its memory.

        Args:
            module: server to run with `python -m`.
            seconds: of load after warm-up.

        Raises:
            ValueError: if the warm-up is too short for texts of all lengths.
        """
        client = LoadClient()
        with tempfile.TemporaryDirectory() as folder, running_server(self.models, self.flags, module=module) as server:
            warm_up, loaded = Path(folder) / "warm-up.txt", Path(folder) / "loaded.txt"
            num_warm_up = self._write_texts(warm_up, loaded)
            load = EmbedLoad(target=server.target, texts=warm_up, seconds=self.warm_up_s, num_texts=4, num_in_flight=8)
            if client.run(load).num_texts < num_warm_up:
                raise ValueError(
                    f"{self.warm_up_s:g} s of warm-up are too few for texts of all lengths; raise --warm-up-s"
                )
            client.start(replace(load, texts=loaded, seconds=seconds))
            samples = list(_samples(server, seconds))
            num_texts = client.result().num_texts
        client.close()
        return MemoryGrowth(module, num_texts, *(list(values) for values in zip(*samples, strict=True)))

    def _write_texts(self, warm_up: Path, loaded: Path) -> int:
        """Write the texts of warm-up and load. Return the number of warm-up texts."""
        task, rng = read_model_directory(embedding_model(self.models)).load_task(), random.Random(0)
        longest = task.settings.max_seq_length - 2  # [CLS] and [SEP]
        cutter = _Cutter(task.tokenizer, self.texts.read_text(encoding="utf-8"), rng)
        if cutter.num_tokens <= longest:
            raise ValueError(f"`{self.texts}` has {cutter.num_tokens} tokens; more than {longest} are needed")
        lengths = [length for length in range(1, longest + 1) for _ in range(ROWS)]
        rng.shuffle(lengths)
        warm_up.write_text("\n".join(map(cutter.cut, lengths)), encoding="utf-8")
        lengths_loaded = (rng.randint(1, longest) for _ in range(NUM_TEXTS))
        loaded.write_text("\n".join(map(cutter.cut, lengths_loaded)), encoding="utf-8")
        return len(lengths)


class _Cutter:
    """Cutter of texts with a given number of tokens from running text."""

    def __init__(self, tokenizer: Tokenizer, text: str, rng: random.Random) -> None:
        self._text, self._rng = " ".join(text[:1_000_000].split()), rng
        self._offsets: np.ndarray = tokenizer.tokenize([self._text])[0].offsets
        self.num_tokens = len(self._offsets)

    def cut(self, num_tokens: int) -> str:
        first = self._rng.randrange(self.num_tokens - num_tokens)
        return self._text[self._offsets[first, 0] : self._offsets[first + num_tokens - 1, 1]]


def _samples(server: ServerProcess, seconds: float) -> Iterator[tuple[float, float]]:
    """Yield seconds since the start and resident memory in MiB."""
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        yield now, server.resident_mb
        time.sleep(SAMPLE_S)
    yield now, server.resident_mb


def plot(growths: Sequence[MemoryGrowth], path: Path) -> None:
    """Plot memory over time, relative to memory after warm-up."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for growth, colour in zip(growths, COLOURS, strict=False):
        first = growth.resident_mb[0]
        axes.plot(growth.seconds, [size / first for size in growth.resident_mb], color=colour)
        axes.annotate(f" {growth.name}, {first:.0f} MB", (growth.seconds[-1], growth.ratio), color=colour, va="center")
    axes.axhline(LIMIT, color="#c0392f", linewidth=1, linestyle="--")
    axes.set(xlabel="seconds of texts of random lengths", ylabel="memory / memory after warm-up")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
