"""Claim: corpus preparation is faster than `datasets.map`, and its memory does not grow with the corpus.

    python -m benchmarks.corpus_preparation --small wiki-00.txt --large texts/ --tokenizer build/tokenizer

Prepares a small and a large corpus from plain text, and tokenizes the same files with a peer: `datasets.map` over lines
with transformers' `BertTokenizerFast`, as transformers' run_mlm.py does. This needs the group `hub`. Without it, the
peer is `encode_batch` of `tokenizers`, in one process, on one file at a time. Memory is the proportional set size (PSS)
of all processes together: shared pages count once, mapped file pages count too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tasks.machine import available_cpus
from training.command import command, parse
from training.text.documents import find_files

POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """Measure the preparation of corpora."""

    small: tuple[Path, ...]
    """Files or folders of plain text, about 10 MB."""
    large: tuple[Path, ...]
    """Files or folders of plain text, the more the better."""
    tokenizer: Path
    """Directory with tokenizer.json and vocab.txt."""
    num_workers: int = 0
    """Processes of each side; 0 for one per core."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Time and memory of one command, including the start of its processes."""

    seconds: float
    peak_bytes: int
    num_tokens: int


PEER = """
import sys
from pathlib import Path
tokenizer, out, num_workers, *files = sys.argv[1:]
from transformers import BertTokenizerFast
tokenizer = BertTokenizerFast.from_pretrained(tokenizer)
num_tokens = 0
if {has_datasets}:
    import datasets
    lines = datasets.load_dataset("text", data_files=files, cache_dir=out, split="train")
    encode = lambda rows: tokenizer(rows["text"], return_special_tokens_mask=True)
    encoded = lines.map(encode, batched=True, num_proc=int(num_workers), remove_columns=["text"])
    for batch in encoded.with_format("arrow").iter(10_000):
        num_tokens += len(batch["input_ids"].combine_chunks().values) - 2 * len(batch)
else:
    for path in files:
        lines = Path(path).read_text(encoding="utf-8").split("\\n")
        num_tokens += sum(map(len, tokenizer.backend_tokenizer.encode_batch(lines, add_special_tokens=False)))
print(num_tokens)
"""


def measure_ours(data: list[Path], settings: CorpusSettings, num_workers: int) -> Measurement:
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "training.corpus", "--data", *map(str, data), "--out", f"{directory}/corpus"]
        command += ["--tokenizer", str(settings.tokenizer), "--num-workers", str(num_workers)]
        seconds, peak_bytes, _ = run_measured(command)
        info = json.loads(Path(directory, "corpus", "corpus.json").read_bytes())
    return Measurement(seconds, peak_bytes, info["num_tokens"])


def measure_peer(data: list[Path], settings: CorpusSettings, num_workers: int, *, has_datasets: bool) -> Measurement:
    code = PEER.replace("{has_datasets}", str(has_datasets))
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", code, str(settings.tokenizer), directory, str(num_workers), *map(str, data)]
        seconds, peak_bytes, output = run_measured(command)
    return Measurement(seconds, peak_bytes, int(output))


def run_measured(command: list[str]) -> tuple[float, int, str]:
    """Run a command. Return seconds, peak bytes of all its processes, and the last line of its output."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    start, peak = time.monotonic(), 0
    with (
        tempfile.TemporaryFile("w+") as output,
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdout=output, stderr=errors, env=environment) as process,
    ):
        while process.poll() is None:
            peak = max(peak, sum(map(_proportional_bytes, _tree(process.pid))))
            time.sleep(POLL_S)
        seconds = time.monotonic() - start
        output.seek(0), errors.seek(0)
        if process.returncode:
            raise ValueError(f"{command[1]} {command[2][:40]} failed: {errors.read()[-500:]}")
        return seconds, peak, output.read().splitlines()[-1]


def _tree(pid: int) -> list[int]:
    try:
        children = [
            child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        ]
    except OSError:  # the process has ended
        return []
    return [pid, *(process for child in children for process in _tree(int(child)))]


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _row(name: str, data: list[Path], measured: Measurement, num_cores: int) -> str:
    size = sum(path.stat().st_size for path in data) / 1e6
    per_core = measured.num_tokens / measured.seconds / num_cores
    return (
        f"{name:<24}{size:>8,.0f}{measured.num_tokens:>13,}{measured.seconds:>9.1f}{per_core:>16,.0f}"
        f"{measured.peak_bytes / 2**20:>10,.0f}"
    )


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(CorpusSettings, "benchmarks.corpus_preparation", __doc__)
    num_cores = settings.num_workers or available_cpus()
    has_datasets = importlib.util.find_spec("datasets") is not None
    if not has_datasets:
        hint = ".venv/bin/pip install --group hub -c constraints.txt"
        print(f"datasets is not installed ({hint}): the peer is tokenizers.encode_batch in one process")
    peer, peer_cores = ("datasets.map", num_cores) if has_datasets else ("encode_batch", 1)
    print(f"{'':<24}{'MB':>8}{'tokens':>13}{'s':>9}{'tokens/s/core':>16}{'peak MiB':>10}")
    for name, paths in (("small", settings.small), ("large", settings.large)):
        data = find_files(paths)
        ours = measure_ours(data, settings, num_cores)
        print(_row(f"{name}, bertline", data, ours, num_cores), flush=True)
        theirs = measure_peer(data, settings, peer_cores, has_datasets=has_datasets)
        print(_row(f"{name}, {peer}", data, theirs, peer_cores), flush=True)
        speed = (ours.num_tokens / ours.seconds / num_cores) / (theirs.num_tokens / theirs.seconds / peer_cores)
        print(f"{'':<24}{speed:.1f} times as fast, {ours.peak_bytes / theirs.peak_bytes:.2f} of the memory")


if __name__ == "__main__":
    main()
