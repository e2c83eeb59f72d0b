"""Stages that make bertline-mini: commands in order, and their results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini.data import STS_DEV
from mini.tasks import CLOZE, TASKS, WINDOWS, MiniTask
from tasks.files import sha256
from tasks.json_files import read_json
from training.ablations.tables import TableName
from training.data.columns import Columns
from training.task_card import read_task_card
from training.weights import checkpoint_digest

VOCAB_SIZE = 8192
VOCAB_FILES = "wiki-00 wiki-03 books-00"
CORPUS_FILES = "wiki-00 wiki-01 wiki-02 wiki-03 wiki-04 wiki-05 books-00 books-01 books-02 books-03"
PRETRAIN = "modern --family bert --eval-every 1000 --checkpoint-every 1000 --log-every 50"
PRETRAINING_STAGES = (
    "--learning-rate 2e-3 --max-minutes 75",
    "--learning-rate 1e-3 --max-minutes 130 --long-seq-length 256",
    "--learning-rate 5e-4 --max-minutes 105 --max-seq-length 256 --global-batch-size 16 --seed 1",
)
NAME = "bertline-mini"
DATA = "Data"
"""Title of the stage that prepares the data."""
EMBED, ABLATIONS = "embed", "ablations"
CONTRASTIVE = "--pooling cls --dropout 0.1 --learning-rate 3e-4 --global-batch-size 128 --train-seq-length 40"
TABLES: tuple[TableName, ...] = ("5", "8", "steps")
"""Tables of the ablations: pretraining tasks, masking, number of steps."""
STS = f"{{data}}/{STS_DEV}"
PAIRS, CLOZE_QUESTIONS = "{made}/pairs.jsonl", "{made}/cloze.json"
STS_COLUMNS = Columns(text="sentence1", text_pair="sentence2", label="score")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Make bertline-mini from the data."""

    data: Path
    """Folder with glue/, ner/, squad/ and the other data listed in docs/results.md."""
    out: Path = Path("build/mini")
    """Folder for all intermediate results."""
    pretrained: Path | None = None
    """Pretrained checkpoint to start from, such as models/bertline-mini. Default: pretrain from scratch."""
    only: tuple[str, ...] = ()
    """Tasks to make, such as sst-2, embed or ablations. Default: all."""

    def __post_init__(self) -> None:
        check_names(self.only, [*task_names(), ABLATIONS])
        if self.pretrained and read_task_card(self.pretrained) is None:
            raise ValueError(f"not a checkpoint that Bertline trained: `{self.pretrained}`")


@dataclass(frozen=True, slots=True)
class Stage:
    """A command and its result."""

    title: str
    arguments: str
    """Arguments of `python -m`."""
    result: Path | None = None
    """Result; an existing one is kept. None for a stage that always runs, because it is short or resumes by itself."""
    task: str = ""
    """Task whose model it makes or scores; empty for stages that all tasks need."""


@dataclass(frozen=True, slots=True)
class PretrainingStage:
    """A part of pretraining, which starts from the weights of the part before."""

    flags: str
    run: Path


class Pipeline:
    """Stages for given data. The results of a task are in the folder of its name."""

    def __init__(self, arguments: Arguments) -> None:
        self.data = arguments.data
        self.out = arguments.out
        self.given = arguments.pretrained
        self.only = arguments.only

    def path(self, pattern: str) -> Path:
        """Return the path of a task's file."""
        return Path(pattern.format(data=self.data, made=self.out / "data"))

    @property
    def pretrained(self) -> Path:
        """Pretrained checkpoint that all tasks start from."""
        return self.given or self.out / "fp16" / NAME

    def pretraining_stages(self) -> list[PretrainingStage]:
        """Return the stages of pretraining; the run of the last has the network's name."""
        names = [*(f"{NAME}-{number}" for number in range(1, len(PRETRAINING_STAGES))), NAME]
        return [PretrainingStage(flags, self.out / name) for flags, name in zip(PRETRAINING_STAGES, names, strict=True)]

    def checkpoint(self, name: str) -> Path:
        """Return the checkpoint of a task's best run."""
        return self.out / name / "checkpoint"

    def models(self, name: str, precision: str) -> Path:
        """Return the folder of models with one task's model in one precision."""
        return self.out / name / precision

    def model(self, name: str, precision: str) -> Path:
        """Return the model directory of a task in a precision."""
        return self.models(name, precision) / served_as(name) / "1"

    def digests(self, name: str) -> dict[str, str]:
        """Return the SHA-256 of each existing file that a task is trained or scored on, named as in `commands_of`."""
        files = {pattern: self.path(pattern) for each in self.trained(name) for pattern in _patterns(each)}
        return {
            pattern.format(data="DATA", made="OUT/data"): sha256(path)
            for pattern, path in files.items()
            if path.is_file()
        }

    def scored(self) -> list[str]:
        """Return the names of the tasks with scores.

        Raises:
            ValueError: if one comes from another checkpoint, other commands or other data than today's.
        """
        names = [name for name in task_names() if self.scores(name).exists()]
        if names and not self.pretrained.exists():
            raise ValueError(
                f"missing checkpoint: `{self.pretrained}`; restore it, or remove its result `{self.out / names[0]}`"
            )
        for name in names:
            record = read_json(self.scores(name))
            self.check_origin(name, record["pretrained"], self.pretrained)
            check_commands(self.out / name, name, record)
            before = record.get("data", {})
            if other := [file for file, digest in self.digests(name).items() if before.get(file) != digest]:
                raise ValueError(f"`{self.out / name}` was made from another `{other[0]}`; remove it to make it again")
        return names

    def start(self, name: str) -> Path:
        """Return the checkpoint that a task starts from."""
        after = _after(name)
        return self.checkpoint(after) if after else self.pretrained

    def trained(self, name: str) -> list[str]:
        """Return the models to train for a task after pretraining, in order."""
        after = _after(name)
        return [*(self.trained(after) if after else []), name]

    def check_origin(self, name: str, digest: str, checkpoint: Path) -> None:
        """Raise if the results of a task do not come from a checkpoint.

        Raises:
            ValueError: naming both.
        """
        if digest != checkpoint_digest(checkpoint):
            raise ValueError(f"`{self.out / name}` does not come from `{checkpoint}`; remove it to make it again")

    @property
    def ablations(self) -> Path:
        """Run directory of the ablations."""
        return self.out / ABLATIONS

    def scores(self, name: str) -> Path:
        """Return the path of a task's scores."""
        return self.out / name / "scores.json"

    def stages(self) -> Iterator[Stage]:
        """Yield all stages in order. A task with scores needs no other stage."""
        data, out = _quoted(self.data), _quoted(self.out)
        chosen = [task for task in TASKS if self._wanted(task.name)]
        if chosen or self._wanted(EMBED):
            yield Stage(DATA, f"mini.data {data} {out}/data")
        if (chosen or self._wanted(EMBED)) and not self.given:
            yield from self._corpora(data, out)
            yield from self._pretraining(out)
        to_do = [task for task in chosen if not self.scores(task.name).exists()]
        before = dict.fromkeys(name for task in to_do for name in self.trained(task.name)[:-1])
        for name in [name for name in before if name not in {task.name for task in chosen}]:
            yield Stage(title_of(name), self.training(name), task=name)
        for task in chosen:
            yield from self._task(task.name)
        if self._wanted(EMBED):
            yield from self._task(EMBED)
        if self._wanted(ABLATIONS):
            yield Stage("Ablations", self._ablations(data), task=ABLATIONS)
        yield Stage("Keep the models", f"mini.ship {self._flags}")
        yield Stage("The page of results", f"mini.results {self._flags}")

    @property
    def _flags(self) -> str:
        """Flags of the commands of this package."""
        given = f" --pretrained {_quoted(self.given)}" if self.given else ""
        return f"--data {_quoted(self.data)} --out {_quoted(self.out)}{given}"

    def _wanted(self, name: str) -> bool:
        return not self.only or name in self.only

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
        corpora, legs, init = f"--corpus {out}/corpus --dev-corpus {out}/corpus-dev", self.pretraining_stages(), ""
        for number, stage in enumerate(legs, start=1):
            arguments = f"training.pretrain {PRETRAIN} {stage.flags}{init} {corpora} --run-dir {_quoted(stage.run)}"
            yield Stage(f"Pretraining, {number} of {len(legs)}", arguments)
            init = f" --init {_quoted(stage.run)}/checkpoint"
        halve = f"mini.half {_quoted(legs[-1].run)}/checkpoint {_quoted(self.pretrained)}"
        yield Stage("The checkpoint in 16 bits", halve)

    def _task(self, name: str) -> Iterator[Stage]:
        """Yield the stages of a task: train, export twice, score."""
        if not self.scores(name).exists():
            yield Stage(title_of(name), self.training(name), task=name)
            for precision in ("fp32", "int8"):
                result = self.model(name, precision)
                wanted = f"int8 --mixed{_metric_flag(name)}" if precision == "int8" else precision
                arguments = f"export {_quoted(self.checkpoint(name))} {_quoted(result)} --precision {wanted}"
                yield Stage(f"Export: {name}, {precision}", arguments, result, name)
        yield Stage(f"Scores: {name}", f"mini.scores {name} {self._flags}", self.scores(name), name)

    def training(self, name: str) -> str:
        """Return the arguments of `python -m` that train the model of a task or an intermediate checkpoint."""
        if name in (CLOZE, EMBED):
            return self._cloze() if name == CLOZE else self._contrastive()
        return self._grid(next(task for task in TASKS if task.name == name))

    def _grid(self, task: MiniTask) -> str:
        train, dev = " ".join(_quoted(self.path(file)) for file in task.train), _quoted(self.path(task.dev))
        return (
            f"training.grid {task.kind} --checkpoint {_quoted(self.start(task.name))} "
            f"--train {train} --dev {dev} --run-dir {_quoted(self.out)}/{task.name} --metric {task.metric} "
            f"--learning-rates {_words(task.learning_rates)} --epochs {task.epochs:g} --seeds {_words(task.seeds)} "
            f"--checkpoint-every 0 --dropout 0.1 {task.flags}"
        ).strip()

    def _cloze(self) -> str:
        return (
            f"training.finetune spans --checkpoint {_quoted(self.pretrained)} "
            f"--train {_quoted(self.path(CLOZE_QUESTIONS))} --dev {_quoted(self.path(_cloze_dev()))} "
            f"--run-dir {_quoted(self.out)}/{CLOZE} {WINDOWS} --num-epochs 1 --learning-rate 5e-4 --dropout 0"
        )

    def _ablations(self, data: str) -> str:
        tables = _words(TABLES)
        return f"training.ablations --data {data} --run-dir {_quoted(self.ablations)} --scale mini --tables {tables}"

    def _contrastive(self) -> str:
        names = {"text": STS_COLUMNS.text, "text-pair": STS_COLUMNS.text_pair, "label": STS_COLUMNS.label}
        columns = " ".join(f"--dev-columns.{flag} {name}" for flag, name in names.items())
        return (
            f"training.contrastive supervised --checkpoint {_quoted(self.pretrained)} "
            f"--train {_quoted(self.path(PAIRS))} --dev {_quoted(self.path(STS))} {columns} "
            f"--run-dir {_quoted(self.out)}/{EMBED} --checkpoint-every 0 {CONTRASTIVE}"
        )


def task_names() -> list[str]:
    """Return the names of the tasks and of the text vectors."""
    return [*(task.name for task in TASKS), EMBED]


def commands_of(name: str) -> list[str]:
    """Return the commands that train the model of a task, after the models that it starts from.

    Paths use the folders DATA and OUT. Scores are only valid for the commands that are recorded with them.
    """
    pipeline = Pipeline(Arguments(data=Path("DATA"), out=Path("OUT")))
    return [f"python -m {pipeline.training(each)}" for each in pipeline.trained(name)]


def check_commands(place: Path, name: str, record: Mapping[str, Any]) -> None:
    """Raise ValueError if the scores of a task come from other commands than today's."""
    if record.get("commands") != commands_of(name):
        raise ValueError(f"`{place}` was made with other settings; remove it to make it again")


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ValueError for an unknown name of a task."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown task `{unknown[0]}` (one of: {', '.join(known)})")


def _patterns(name: str) -> list[str]:
    """Return the files that one model is trained and scored on."""
    if name == EMBED:
        return [PAIRS, STS]
    if name == CLOZE:
        return [CLOZE_QUESTIONS, _cloze_dev()]
    task = next(task for task in TASKS if task.name == name)
    return [*task.train, task.dev, *([task.test] if task.test else [])]


def _metric_flag(name: str) -> str:
    """Return the flag for a task's metric; text vectors have a single one."""
    return next((f" --metric {task.metric}" for task in TASKS if task.name == name), "")


def _cloze_dev() -> str:
    return next(task.dev for task in TASKS if task.after == CLOZE and task.kind == "spans")


def _after(name: str) -> str | None:
    return next((task.after for task in TASKS if task.name == name), None)


def title_of(name: str) -> str:
    """Return the title of the stage that trains a model."""
    others = {EMBED: "Vectors of texts", CLOZE: "Synthetic cloze questions"}
    return next((f"Fine-tuning: {task.title}" for task in TASKS if task.name == name), others.get(name, name))


def is_kept(name: str) -> bool:
    """Return whether the model of a task is kept in the repository."""
    return name == EMBED or any(task.shipped_as for task in TASKS if task.name == name)


def kept_models() -> Iterator[tuple[str, Path]]:
    """Yield served name and path below `models/` of each model that is kept in the repository."""
    for name in filter(is_kept, task_names()):
        yield served_as(name), Path(served_as(name)) / "1"


def served_as(name: str) -> str:
    """Return the served name of a task's model."""
    return next((task.shipped_as for task in TASKS if task.name == name and task.shipped_as), name)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


def _words(values: Iterable[object]) -> str:
    return " ".join(map(str, values))
