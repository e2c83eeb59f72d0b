"""Whether a server keeps its memory under texts of random lengths, and whether the check finds one that does not."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.embed_load import Client, Load
from benchmarks.server_process import Served, embedding_model, served
from tasks.model_directory import read_model_directory
from tasks.tokenizer import Tokenizer

LIMIT = 1.15
"""What memory may be in the end, to what it was after warm-up."""
SAMPLE_S = 2.0
NUM_TEXTS = 20_000
ROWS = 4
"""Texts of each length in the warm-up, in random order, so that batches of all shapes come up."""
COLOURS = ("#3b82f6", "#e8833a")


@dataclass(frozen=True)
class Growth:
    """Memory of a server after warm-up."""

    name: str
    num_texts: int
    seconds: list[float]
    resident_mb: list[float]

    @property
    def ratio(self) -> float:
        """The end to the beginning."""
        return self.resident_mb[-1] / self.resident_mb[0]

    @property
    def is_flagged(self) -> bool:
        """Whether that is more than it may be."""
        return self.ratio > LIMIT

    def __str__(self) -> str:
        verdict = f"grows (more than {LIMIT})" if self.is_flagged else f"stays (at most {LIMIT})"
        return (
            f"{self.name}: {self.resident_mb[0]:.0f} -> {self.resident_mb[-1]:.0f} MB in {self.seconds[-1]:.0f} s "
            f"({self.num_texts:,} texts), at most {max(self.resident_mb):.0f}; {self.ratio:.2f} times: {verdict}"
        )


@dataclass(frozen=True, kw_only=True)
class Watch:
    """How a server's memory is watched."""

    models: Path
    texts: Path
    """The texts that are sent are cut from these."""
    warm_up_s: float
    flags: Sequence[str] = ()
    """Of the server."""

    def run(self, module: str, seconds: float) -> Growth:
        """Warm a server up and load it with texts of 1 token to as many as its model reads, in random order.

        Args:
            module: the server, as `python -m` starts it.
        """
        client = Client()
        with tempfile.TemporaryDirectory() as folder, served(self.models, self.flags, module=module) as server:
            warm_up, loaded = Path(folder) / "warm-up.txt", Path(folder) / "loaded.txt"
            num_warm_up = self._write_texts(warm_up, loaded)
            load = Load(target=server.target, texts=warm_up, seconds=self.warm_up_s, num_texts=4, num_in_flight=8)
            if client.run(load).num_texts < num_warm_up:
                raise ValueError(f"{self.warm_up_s:g} s of warm-up do not do for all lengths; give more: --warm-up-s")
            client.start(replace(load, texts=loaded, seconds=seconds))
            samples = list(_samples(server, seconds))
            num_texts = client.result().num_texts
        client.close()
        return Growth(module, num_texts, *(list(values) for values in zip(*samples, strict=True)))

    def _write_texts(self, warm_up: Path, loaded: Path) -> int:
        """Returns how many texts the warm-up has."""
        task, rng = read_model_directory(embedding_model(self.models)).load_task(), random.Random(0)
        longest = task.settings.max_seq_length - 2  # [CLS] and [SEP]
        cutter = _Cutter(task.tokenizer, self.texts.read_text(encoding="utf-8"), rng)
        if cutter.num_tokens <= longest:
            raise ValueError(f"`{self.texts}` has {cutter.num_tokens} tokens; this needs more than {longest}")
        lengths = [length for length in range(1, longest + 1) for _ in range(ROWS)]
        rng.shuffle(lengths)
        warm_up.write_text("\n".join(map(cutter.cut, lengths)), encoding="utf-8")
        lengths_loaded = (rng.randint(1, longest) for _ in range(NUM_TEXTS))
        loaded.write_text("\n".join(map(cutter.cut, lengths_loaded)), encoding="utf-8")
        return len(lengths)


class _Cutter:
    """Cuts texts of so many tokens out of running text."""

    def __init__(self, tokenizer: Tokenizer, text: str, rng: random.Random) -> None:
        self._text, self._rng = " ".join(text[:1_000_000].split()), rng
        self._offsets: np.ndarray = tokenizer.tokenize([self._text])[0].offsets
        self.num_tokens = len(self._offsets)

    def cut(self, num_tokens: int) -> str:
        first = self._rng.randrange(self.num_tokens - num_tokens)
        return self._text[self._offsets[first, 0] : self._offsets[first + num_tokens - 1, 1]]


def _samples(server: Served, seconds: float) -> Iterator[tuple[float, float]]:
    """Seconds, and memory in MB then."""
    started = time.perf_counter()
    while (now := time.perf_counter() - started) < seconds:
        yield now, server.resident_mb
        time.sleep(SAMPLE_S)
    yield now, server.resident_mb


def plot(growths: Sequence[Growth], path: Path) -> None:
    """Draw memory over time."""
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
