"""Data of all runs, found in a folder and prepared once: vocabulary, corpus, held-out corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.ablations.scales import Scale
from recipes.ablations.tables import LABELLED_DATA, TaskName
from tasks.bundle.files import MADE_FROM_FILE, atomic_write, sha256
from tasks.text.json_files import read_json
from training.corpus import CorpusRecipe, prepare_corpus
from training.loop.recipe import check_no_run
from training.vocab import VocabRecipe, train_vocab

SAMPLE_BYTES = 50_000_000
"""Bytes of text to train the vocabulary on."""


@dataclass(frozen=True, kw_only=True)
class PreparedData:
    """Data of pretraining and fine-tuning."""

    corpus: Path
    dev_corpus: Path
    labelled: dict[TaskName, tuple[Path, Path]]
    """Train and dev file of each task."""


def find_labelled(data: Path, tasks: Sequence[TaskName]) -> dict[TaskName, tuple[Path, Path]]:
    """Return train and dev file of each task.

    Raises:
        ValueError: naming a missing file.
    """

    def find(task: TaskName, pattern: str) -> Path:
        found = [path for packing in ("", ".xz", ".gz") for path in sorted(data.glob(pattern + packing))]
        if not found:
            raise ValueError(f"no `{pattern}` (or .xz, .gz) in `{data}`; put it there, or leave {task} out of --tasks")
        return found[0]

    return {task: (find(task, LABELLED_DATA[task].train), find(task, LABELLED_DATA[task].dev)) for task in tasks}


def find_text(data: Path, pattern: str, num_files: int | None) -> tuple[list[Path], Path]:
    """Return files to pretrain on, evenly spread over all files, and the last file, which is held out.

    Raises:
        ValueError: if there are fewer than two files.
    """
    *files, held_out = sorted(data.glob(pattern)) or [data]
    if not files:
        raise ValueError(f"fewer than two files `{pattern}` in `{data}`: one is held out; name the files with --text")
    number = min(num_files or len(files), len(files))
    return [files[index * len(files) // number] for index in range(number)], held_out


def prepare(
    run_dir: Path, scale: Scale, text: tuple[Sequence[Path], Path], labelled: dict[TaskName, tuple[Path, Path]]
) -> PreparedData:
    """Train the vocabulary and prepare the corpora, unless they exist.

    Raises:
        ValueError: if they were made from other data.
    """
    files, held_out = text
    tokenizer, corpus, dev_corpus = (run_dir / name for name in ("tokenizer", "corpus", "corpus-dev"))
    made_from = {"text": {str(path): sha256(path) for path in (*files, held_out)}, "vocab_size": scale.vocab_size}
    check_no_run(run_dir)
    record = run_dir / MADE_FROM_FILE
    if record.is_file() and (before := read_json(record)) != made_from:
        name = next(name for name in made_from if before.get(name) != made_from[name])
        raise ValueError(f"`{run_dir}` was made from another {name} (see `{record}`); choose another run directory")
    atomic_write(record, (json.dumps(made_from, indent=2) + "\n").encode())
    if not tokenizer.exists():
        train_vocab(
            VocabRecipe(data=tuple(files), out=tokenizer, vocab_size=scale.vocab_size, sample_bytes=SAMPLE_BYTES)
        )
    for paths, out in ((tuple(files), corpus), ((held_out,), dev_corpus)):
        if not out.exists():
            prepare_corpus(CorpusRecipe(data=paths, tokenizer=tokenizer, out=out))
    return PreparedData(corpus=corpus, dev_corpus=dev_corpus, labelled=labelled)
