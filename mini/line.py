"""The stages of the line: what runs, in which order, and what is there when it is done."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mini.tasks import SQUAD, TASKS, MiniTask

VOCAB_SIZE = 8192
VOCAB_FILES = "wiki-00 wiki-03 books-00"
CORPUS_FILES = "wiki-00 wiki-01 wiki-02 wiki-03 wiki-04 wiki-05 books-00 books-01 books-02 books-03"
PRETRAIN = "modern --eval-every 1000 --checkpoint-every 1000 --log-every 50"
LEGS = (
    "--learning-rate 2e-3 --max-minutes 75",
    "--initialization bert --learning-rate 1e-3 --max-minutes 150 --long-seq-length 256",
)
"""Each goes on from the weights of the one before."""
NAME = "bertline-mini"
EMBED, CLOZE = "embed", "cloze"
CONTRASTIVE = "--pooling cls --dropout 0 --learning-rate 5e-4 --global-batch-size 128 --train-seq-length 40"
STS = "{data}/glue/STS-B/dev.tsv.xz"
STS_COLUMNS = "--dev-columns.text sentence1 --dev-columns.text-pair sentence2 --dev-columns.label score"


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
    result: Path | None = None
    """None for a stage that always runs."""


class Line:
    """The stages over some data."""

    def __init__(self, arguments: Arguments) -> None:
        self.data = arguments.data
        self.out = arguments.out

    def path(self, pattern: str) -> Path:
        """A file of a task."""
        return Path(pattern.format(data=self.data, made=self.out / "data"))

    @property
    def pretrained(self) -> Path:
        """The checkpoint that all tasks start from."""
        return self.out / f"{NAME}-fp16"

    def checkpoint(self, name: str) -> Path:
        """The best of a task's runs."""
        return self.out / name / "checkpoint"

    def shipped(self) -> list[str]:
        """Names of the models that are kept."""
        return [EMBED, *(task.model for task in TASKS if task.shipped_as)]

    def model(self, name: str, precision: str) -> Path:
        """The model directory of a task; int8 has the plain name."""
        return self.out / "models" / (name if precision == "int8" else f"{name}-{precision}") / "1"

    def stages(self) -> Iterator[Stage]:
        """All of them in order."""
        data, out = _quoted(self.data), _quoted(self.out)
        yield Stage("Data", f"mini.data {data} {out}/data", self.out / "data/squad-v2.json")
        yield from self._corpora(data, out)
        yield from self._pretraining(out)
        yield Stage("Questions that text asks of itself", self._cloze(), self.checkpoint(CLOZE))
        for task in TASKS:
            yield Stage(f"Fine-tuning: {task.title}", self._grid(task), self.checkpoint(task.name))
        yield Stage("Vectors of texts", self._contrastive(), self.checkpoint(EMBED))
        for name, model in [(task.name, task.model) for task in TASKS] + [(EMBED, EMBED)]:
            for precision in ("fp32", "int8"):
                result = self.model(model, precision)
                arguments = f"export {_quoted(self.checkpoint(name))} {_quoted(result)} --precision {precision}"
                yield Stage(f"Export: {model}, {precision}", arguments, result)
        yield Stage("Scores", f"mini.scores --data {data} --out {out}", self.out / "scores.json")
        yield Stage("Keep what is good enough", f"mini.ship --data {data} --out {out}")
        yield Stage("The page of results", f"mini.results --data {data} --out {out}")

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

    def _pretraining(self, out: str) -> Iterator[Stage]:
        corpora, last = f"--corpus {out}/corpus --dev-corpus {out}/corpus-dev", len(LEGS)
        for number, flags in enumerate(LEGS, start=1):
            run = f"{NAME}-{number}" if number < last else NAME
            init = f" --init {out}/{NAME}-{number - 1}/checkpoint" if number > 1 else ""
            arguments = f"training.pretrain {PRETRAIN} {flags}{init} {corpora} --run-dir {out}/{run}"
            yield Stage(f"Pretraining, {number} of {last}", arguments, self.out / run / "checkpoint")
        halve = f"mini.half {out}/{NAME}/checkpoint {out}/{NAME}-fp16"
        yield Stage("The checkpoint in 16 bits", halve, self.pretrained)

    def _grid(self, task: MiniTask) -> str:
        start = self.checkpoint(CLOZE) if task.after_cloze else self.pretrained
        train, dev = " ".join(_quoted(self.path(file)) for file in task.train), _quoted(self.path(task.dev))
        return (
            f"training.grid {task.kind} --checkpoint {_quoted(start)} "
            f"--train {train} --dev {dev} --run-dir {_quoted(self.out)}/{task.name} --metric {task.metric} "
            f"--learning-rates {_words(task.learning_rates)} --epochs {task.epochs:g} --seeds {_words(task.seeds)} "
            f"--checkpoint-every 0 --dropout 0.1 {task.flags}"
        ).strip()

    def _cloze(self) -> str:
        dev = next(task.dev for task in TASKS if task.after_cloze)
        return (
            f"training.finetune spans --checkpoint {_quoted(self.pretrained)} "
            f"--train {_quoted(self.out)}/data/cloze.json --dev {_quoted(self.path(dev))} "
            f"--run-dir {_quoted(self.out)}/{CLOZE} {SQUAD} --num-epochs 1 --learning-rate 5e-4 --dropout 0"
        )

    def _contrastive(self) -> str:
        return (
            f"training.contrastive supervised --checkpoint {_quoted(self.pretrained)} "
            f"--train {_quoted(self.out)}/data/pairs.jsonl --dev {_quoted(self.path(STS))} {STS_COLUMNS} "
            f"--run-dir {_quoted(self.out)}/{EMBED} --checkpoint-every 0 {CONTRASTIVE}"
        )


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _words(values: Iterable[object]) -> str:
    return " ".join(map(str, values))
