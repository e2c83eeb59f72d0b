"""Make bertline-mini from the data: pretrain, fine-tune for every task, export, and score. Hours on two cores.

    python -m mini --data DATA --out build/mini

Every stage is one of the commands that a user runs, and is shown before it runs. What is there already is not made
again: the same command goes on where it was. docs/results.md tells what data there have to be, and what came out.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.stage import run_stage
from mini.tasks import TASKS, MiniTask
from training.command import command, parse

VOCAB_SIZE = 8192
VOCAB_FILES = "wiki-00 wiki-03 books-00"
CORPUS_FILES = "wiki-00 wiki-01 wiki-02 wiki-03 wiki-04 wiki-05 books-00 books-01 books-02 books-03"
PRETRAIN = (
    "modern --max-minutes 150 --masking-rate 0.4 --learning-rate 2e-3 --eval-every 1000 --checkpoint-every 1000 "
    "--log-every 50"
)


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Make bertline-mini from the data."""

    data: Path
    """Folder with glue/, ner/, squad/ and the others that docs/results.md names."""
    out: Path = Path("build/mini")
    """Folder for all that is made on the way."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A command, and what is there when it is done."""

    title: str
    arguments: str
    """What comes after `python -m`."""
    result: Path


class Line:
    """The stages over some data."""

    def __init__(self, data: Path, out: Path) -> None:
        self.data = data
        self.out = out

    def stages(self) -> Iterator[Stage]:
        """All of them in order."""
        data, out = shlex.quote(str(self.data)), shlex.quote(str(self.out))
        yield Stage("Data", f"mini.data {data} {out}/data", self.out / "data/squad-v2.json")
        yield from self._corpora(data, out)
        corpora = f"--corpus {out}/corpus --dev-corpus {out}/corpus-dev"
        result = self.out / "pretrain/checkpoint"
        yield Stage("Pretraining", f"training.pretrain {PRETRAIN} {corpora} --run-dir {out}/pretrain", result)
        for task in TASKS:
            yield Stage(f"Fine-tuning: {task.title}", self._grid(task), self.out / task.name / "checkpoint")

    def _corpora(self, data: str, out: str) -> Iterator[Stage]:
        def files(names: str) -> str:
            return " ".join(f"{data}/pretrain/{name}.txt.xz" for name in names.split())

        vocab = f"training.vocab --data {files(VOCAB_FILES)} --out {out}/tokenizer --vocab-size {VOCAB_SIZE}"
        yield Stage("Vocabulary", vocab, self.out / "tokenizer")
        for name, texts in (
            ("corpus", f"{files(CORPUS_FILES)} {out}/data/wiki-rest.txt"),
            ("corpus-dev", f"{out}/data/wiki-dev.txt"),
        ):
            arguments = f"training.corpus --data {texts} --tokenizer {out}/tokenizer --out {out}/{name}"
            yield Stage(f"Text as tokens: {name}", arguments, self.out / name)

    def _grid(self, task: MiniTask) -> str:
        train, dev = " ".join(map(self._path, task.train)), self._path(task.dev)
        return (
            f"training.grid {task.kind} --checkpoint {shlex.quote(str(self.out))}/pretrain/checkpoint "
            f"--train {train} --dev {dev} --run-dir {shlex.quote(str(self.out))}/{task.name} --metric {task.metric} "
            f"--learning-rates {_words(task.learning_rates)} --epochs {task.epochs:g} --seeds {_words(task.seeds)} "
            f"--checkpoint-every 0 {task.flags}"
        ).strip()

    def _path(self, pattern: str) -> str:
        return shlex.quote(pattern.format(data=self.data, made=self.out / "data"))


def _words(values: object) -> str:
    return " ".join(map(str, values))  # type: ignore[call-overload]


@command
def main() -> None:
    """Command line."""
    arguments = parse(Arguments, "mini", __doc__)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stages = list(Line(arguments.data, arguments.out).stages())
    for number, stage in enumerate(stages, start=1):
        if stage.result.exists():
            print(f"[{number}/{len(stages)}] {stage.title}: there is {stage.result}", flush=True)
        else:
            run_stage(number, len(stages), stage.title, stage.arguments)


if __name__ == "__main__":
    main()
