"""The data of all runs, found in a folder and prepared once: a vocabulary, a corpus, a held-out corpus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.files import MADE_FROM_FILE, atomic_write, sha256
from tasks.json_files import read_json
from training.ablations.scales import Scale
from training.ablations.tables import LABELLED_DATA, TaskName
from training.corpus import CorpusRecipe, prepare_corpus
from training.loop.recipe import check_no_run
from training.vocab import VocabRecipe, train_vocab

SAMPLE_BYTES = 50_000_000
"""Of text to learn the vocabulary from."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What pretraining and fine-tuning read."""

    corpus: Path
    dev_corpus: Path
    labelled: dict[TaskName, tuple[Path, Path]]
    """Train and dev file of each task."""


def find_labelled(data: Path, tasks: Sequence[TaskName]) -> dict[TaskName, tuple[Path, Path]]:
    """Train and dev file of each task.

    Raises:
        ValueError: naming the file that is not there.
    """
    return {
        task: (_find(data, LABELLED_DATA[task].train, task), _find(data, LABELLED_DATA[task].dev, task))
        for task in tasks
    }


def _find(data: Path, pattern: str, task: TaskName) -> Path:
    found = [path for packing in ("", ".xz", ".gz") for path in sorted(data.glob(pattern + packing))]
    if not found:
        raise ValueError(f"no `{pattern}` (or .xz, .gz) in `{data}`; put it there, or leave {task} out of --tasks")
    return found[0]


def find_text(data: Path, pattern: str, num_files: int | None) -> tuple[list[Path], Path]:
    """Files to pretrain on, evenly spread over those that there are, and the last of all, which is held out.

    Raises:
        ValueError: when there are fewer than two.
    """
    *files, held_out = sorted(data.glob(pattern)) or [data]
    if not files:
        raise ValueError(f"fewer than two files `{pattern}` in `{data}`: one is held out; --text says where they are")
    number = min(num_files or len(files), len(files))
    return [files[index * len(files) // number] for index in range(number)], held_out


def prepare(
    run_dir: Path, scale: Scale, text: tuple[Sequence[Path], Path], labelled: dict[TaskName, tuple[Path, Path]]
) -> Prepared:
    """Make what is not there yet.

    Raises:
        ValueError: when it was made from something else.
    """
    files, held_out = text
    tokenizer, corpus, dev_corpus = (run_dir / name for name in ("tokenizer", "corpus", "corpus-dev"))
    _check_made_from(
        run_dir, {"text": {str(path): sha256(path) for path in (*files, held_out)}, "vocab_size": scale.vocab_size}
    )
    if not tokenizer.exists():
        train_vocab(
            VocabRecipe(data=tuple(files), out=tokenizer, vocab_size=scale.vocab_size, sample_bytes=SAMPLE_BYTES)
        )
    for paths, out in ((tuple(files), corpus), ((held_out,), dev_corpus)):
        if not out.exists():
            prepare_corpus(CorpusRecipe(data=paths, tokenizer=tokenizer, out=out))
    return Prepared(corpus=corpus, dev_corpus=dev_corpus, labelled=labelled)


def _check_made_from(run_dir: Path, made_from: dict[str, Any]) -> None:
    check_no_run(run_dir)
    path = run_dir / MADE_FROM_FILE
    if path.is_file() and (before := read_json(path)) != made_from:
        name = next(name for name in made_from if before.get(name) != made_from[name])
        raise ValueError(
            f"`{run_dir}` was made from other {name} than that of now (see `{path}`); choose another run directory"
        )
    atomic_write(path, (json.dumps(made_from, indent=2) + "\n").encode())
