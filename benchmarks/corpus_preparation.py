"""Claim: on one core, a corpus is prepared 2.9 times as fast as with `datasets.map`.

    .venv/bin/pip install --group hub -c constraints.txt
    python -m benchmarks.corpus_preparation --data texts/ --tokenizer build/tokenizer --num-workers 1

Prepares a corpus from plain text, and tokenizes the same files with `datasets.map` over lines and transformers'
`BertTokenizerFast`, as transformers' run_mlm.py does, alternately. Times include the start of the processes.
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
from typing import Annotated

from benchmarks.harness import alternate, print_rates
from tasks.bundle.machine import available_cpus
from training.command_line.bounds import COUNT, NOT_NEGATIVE, check_numbers
from training.command_line.command import command, parse
from training.text.documents import find_files


@dataclass(frozen=True, kw_only=True)
class CorpusSettings:
    """Measure the preparation of a corpus."""

    data: tuple[Path, ...]
    """Files or folders of plain text, the more the better."""
    tokenizer: Path
    """Directory with tokenizer.json and vocab.txt."""
    num_workers: Annotated[int, NOT_NEGATIVE] = 0
    """Processes of each side; 0 for one per core."""
    rounds: Annotated[int, COUNT] = 3
    """Rounds of both measurements."""

    def __post_init__(self) -> None:
        check_numbers(self)


PEER = """
import sys, datasets
from transformers import BertTokenizerFast
tokenizer, out, num_workers, *files = sys.argv[1:]
tokenizer, num_tokens = BertTokenizerFast.from_pretrained(tokenizer), 0
lines = datasets.load_dataset("text", data_files=files, cache_dir=out, split="train")
encode = lambda rows: tokenizer(rows["text"], return_special_tokens_mask=True)
encoded = lines.map(encode, batched=True, num_proc=int(num_workers), remove_columns=["text"])
for batch in encoded.with_format("arrow").iter(10_000):
    num_tokens += len(batch["input_ids"].combine_chunks().values) - 2 * len(batch)
print(num_tokens)
"""


def tokens_per_s(data: list[Path], settings: CorpusSettings, num_workers: int, *, is_peer: bool) -> float:
    """Return the tokens per second of one preparation.

    Raises:
        ValueError: if it fails.
    """
    files = [*map(str, data)]
    with tempfile.TemporaryDirectory() as folder:
        if is_peer:
            words = ["-c", PEER, str(settings.tokenizer), folder, str(num_workers), *files]
        else:
            words = ["-m", "training.corpus", "--data", *files, "--out", f"{folder}/corpus"]
            words += ["--tokenizer", str(settings.tokenizer), "--num-workers", str(num_workers)]
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
        start = time.monotonic()
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment, check=False)
        seconds = time.monotonic() - start
        if done.returncode:
            raise ValueError(f"a preparation failed: {done.stderr[-500:]}")
        if is_peer:
            return int(done.stdout.splitlines()[-1]) / seconds
        return float(json.loads(Path(folder, "corpus", "corpus.json").read_bytes())["num_tokens"] / seconds)


@command
def main() -> None:
    """Run the benchmark."""
    settings = parse(CorpusSettings, "benchmarks.corpus_preparation", __doc__)
    if importlib.util.find_spec("datasets") is None:
        raise ValueError("datasets is not installed: .venv/bin/pip install --group hub -c constraints.txt")
    data, cores = find_files(settings.data), settings.num_workers or available_cpus()
    measures = {
        name: lambda is_peer=is_peer: tokens_per_s(data, settings, cores, is_peer=is_peer)  # type: ignore[misc]
        for name, is_peer in (("datasets.map", True), ("Bertline", False))
    }
    print_rates(alternate(measures, settings.rounds), "tokens")


if __name__ == "__main__":
    main()
