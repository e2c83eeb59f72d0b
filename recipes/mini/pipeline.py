"""Stages that make bertline-mini and the shipped models: commands in order, and their results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.ablations.tables import TableName
from recipes.mini.data import STS_DEV
from recipes.mini.tasks import (
    DISTILLED,
    EMBED,
    MINILM,
    SEARCH,
    STUDENT,
    TEACHERS,
    TRIMMED,
    DistilledTask,
    all_trainings,
    is_distilled,
    task_names,
    task_of,
)
from tasks.bundle.files import sha256
from tasks.text.json_files import read_json
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.data.columns import Columns

NAME = "bertline-mini"
VOCAB_SIZE = 8192
VOCAB_FILES = "wiki-00 wiki-03 books-00"
CORPUS_FILES = "wiki-00 wiki-01 wiki-02 wiki-03 wiki-04 wiki-05 books-00 books-01 books-02 books-03"
PRETRAIN = "modern --family bert --eval-every 1000 --checkpoint-every 1000 --log-every 50"
PRETRAINING_STAGES = (  # each starts from the weights of the one before
    "--learning-rate 2e-3 --max-minutes 75",
    "--learning-rate 1e-3 --max-minutes 130 --long-seq-length 256",
    "--learning-rate 5e-4 --max-minutes 105 --max-seq-length 256 --global-batch-size 16 --seed 1",
)
DATA = "Data"
"""Title of the stage that prepares the data."""
ABLATIONS = "ablations"
STUDENT_PRETRAINING = (
    "modern --num-hidden-layers 6 --hidden-size 384 --num-attention-heads 6 --global-batch-size 512 "
    "--micro-batch-size 512 --learning-rate 2e-3 --long-seq-length 512 --long-fraction 0.0126 --masking-rate 0.3 "
    "--num-steps 5254 --eval-every 2000"
)
"""Flags of pretraining the students' network: three minutes on a GPU, days on two cores."""
TRIM_TEXTS = " ".join(
    f"{{made}}/{name}"
    for name in ("paragraphs.txt", "questions.jsonl", "sentences-part.txt", "reviews.txt", "wiki-rest.txt")
)
"""Texts whose words decide which tokens of a teacher stay."""
TABLES: tuple[TableName, ...] = ("5", "8", "steps")
"""Tables of the ablations: pretraining tasks, masking, number of steps."""
STS = f"{{data}}/{STS_DEV}"
STS_COLUMNS = Columns(text="sentence1", text_pair="sentence2", label="score")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Make bertline-mini and the shipped models from the data."""

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


class Pipeline:
    """Paths of the files, and the stages that make them. The results of a task are in the folder of its name."""

    def __init__(self, arguments: Arguments) -> None:
        self.data, self.out = arguments.data, arguments.out
        self.given, self.only = arguments.pretrained, arguments.only
        self.pretrained = self.given or self.fp16(NAME)
        """Pretrained checkpoint that all tasks of bertline-mini start from."""
        self.student = self.fp16(STUDENT)
        """Pretrained checkpoint that most students start from."""
        self.ablations = self.out / ABLATIONS
        """Run directory of the ablations."""

    def _places(self) -> dict[str, Path]:
        """Return the paths that patterns of `recipes.mini.tasks` name."""
        checkpoints = {"pretrained": self.pretrained, "student": self.student}
        return {"data": self.data, "made": self.out / "data", "out": self.out, **checkpoints}

    def path(self, pattern: str) -> Path:
        """Return the path that a pattern stands for."""
        return Path(pattern.format(**self._places()))

    def command(self, pattern: str) -> str:
        """Return the command that a pattern stands for."""
        return pattern.format(**{name: shlex.quote(str(path)) for name, path in self._places().items()})

    def fp16(self, name: str) -> Path:
        """Return the place of a checkpoint in 16 bits."""
        return self.out / "fp16" / name

    def pretrained_for(self, name: str) -> Path:
        """Return the pretrained checkpoint of a task."""
        task = task_of(name)
        return self.path(task.start) if isinstance(task, DistilledTask) else self.pretrained

    def checkpoint(self, name: str) -> Path:
        """Return the checkpoint of a task's best run, or of its distilled model in 16 bits."""
        return self.fp16(name) if is_distilled(name) else self.out / name / "checkpoint"

    def models(self, name: str, precision: str) -> Path:
        """Return the folder of models with one task's model in one precision."""
        return self.out / name / precision

    def model(self, name: str, precision: str) -> Path:
        """Return the model directory of a task in a precision."""
        return self.models(name, precision) / name / "1"

    def scores(self, name: str) -> Path:
        """Return the path of a task's scores."""
        return self.out / name / "scores.json"

    def pretraining_runs(self) -> list[Path]:
        """Return the run of each stage of pretraining; that of the last has the network's name."""
        return [*(self.out / f"{NAME}-{number}" for number in range(1, len(PRETRAINING_STAGES))), self.out / NAME]

    def digests(self, name: str) -> dict[str, str]:
        """Return the SHA-256 of each existing file that a task is trained or scored on, named as in `commands_of`."""
        files = dict.fromkeys(file for each in task_of(name).trainings().values() for file in each.files)
        named = {file.format(data="DATA", made="OUT/data"): self.path(file) for file in files}
        return {file: sha256(path) for file, path in named.items() if path.is_file()}

    def scored(self) -> list[str]:
        """Return the names of the tasks with scores.

        Raises:
            ValueError: if one comes from another checkpoint, other commands or other data than today's.
        """
        names = [name for name in task_names() if self.scores(name).exists()]
        for name in names:
            place, pretrained = self.out / name, self.pretrained_for(name)
            needed = [pretrained, self.checkpoint(name)] if is_distilled(name) else [pretrained]
            if missing := [path for path in needed if not path.exists()]:
                raise ValueError(f"missing checkpoint: `{missing[0]}`; restore it, or remove its result `{place}`")
            record = read_json(self.scores(name))
            self.check_origin(name, record["pretrained"], pretrained)
            check_commands(place, name, record)
            before = record.get("data", {})
            if other := [file for file, digest in self.digests(name).items() if before.get(file) != digest]:
                raise ValueError(f"`{place}` was made from another `{other[0]}`; remove it to make it again")
        return names

    def check_origin(self, name: str, digest: str, checkpoint: Path) -> None:
        """Raise ValueError if the results of a task do not come from a checkpoint."""
        if digest != checkpoint_digest(checkpoint):
            raise ValueError(f"`{self.out / name}` does not come from `{checkpoint}`; remove it to make it again")

    def stages(self) -> Iterator[Stage]:
        """Yield all stages in order. A task with scores needs no other stage."""
        names = [name for name in task_names() if not self.only or name in self.only]
        chosen = [name for name in names if not is_distilled(name)]
        students = [name for name in names if is_distilled(name)]
        to_distil = [task for task in DISTILLED if task.name in students and not self.checkpoint(task.name).exists()]
        needs_student = any(task.start == "{student}" for task in to_distil) and not self.student.exists()
        pretrains = bool(chosen) and not self.given
        if names:
            yield Stage(DATA, self.command("recipes.mini.data {data} {made}"))
        if pretrains or needs_student:
            yield from self._corpora()
        if pretrains:
            yield from self._pretraining()
        to_do = [name for name in chosen if not self.scores(name).exists()]
        before = dict.fromkeys(each for name in to_do for each in task_of(name).trainings() if each != name)
        yield from self._trainings(name for name in before if name not in chosen)
        for name in chosen:
            yield from self._trainings([name] if name in to_do else [])
            yield from self._exports_and_scores(name)
        if needs_student:
            run = f"{{out}}/{STUDENT}"
            yield self._pretrain("Pretraining of the students' network", STUDENT_PRETRAINING, run)
            yield self._halve("The students' network in 16 bits", f"{run}/checkpoint", "{student}")
        yield from self._teachers(to_distil)
        for name in students:
            if name in [task.name for task in to_distil]:
                yield from self._trainings(task_of(name).trainings(), name)
                yield self._halve(f"{name} in 16 bits", f"{{out}}/{name}/checkpoint", f"{{out}}/fp16/{name}", name)
            yield from self._exports_and_scores(name)
        if not self.only or ABLATIONS in self.only:
            flags = f"--data {{data}} --run-dir {{out}}/{ABLATIONS} --scale mini --tables {' '.join(TABLES)}"
            yield Stage("Ablations", self.command(f"recipes.ablations {flags}"), task=ABLATIONS)
        yield Stage("Keep the models", f"recipes.mini.publish {self._flags}")
        yield Stage("The page of results", f"recipes.mini.results {self._flags}")

    @property
    def _flags(self) -> str:
        """Flags of the commands of this package."""
        return self.command("--data {data} --out {out}" + (" --pretrained {pretrained}" if self.given else ""))

    def _corpora(self) -> Iterator[Stage]:
        def files(names: str) -> str:
            return " ".join(f"{{data}}/pretrain/{name}.txt.xz" for name in names.split())

        vocab = f"training.vocab --data {files(VOCAB_FILES)} --out {{out}}/tokenizer --vocab-size {VOCAB_SIZE}"
        yield Stage("Vocabulary", self.command(vocab), self.out / "tokenizer")
        for name, texts in (
            ("corpus", f"{files(CORPUS_FILES)} {{made}}/wiki-rest.txt"),
            ("corpus-dev", "{made}/wiki-dev.txt"),
        ):
            arguments = f"training.corpus --data {texts} --tokenizer {{out}}/tokenizer --out {{out}}/{name}"
            yield Stage(f"Text as tokens: {name}", self.command(arguments), self.out / name)

    def _pretraining(self) -> Iterator[Stage]:
        runs, init = [f"{{out}}/{run.name}" for run in self.pretraining_runs()], ""
        for number, (flags, run) in enumerate(zip(PRETRAINING_STAGES, runs, strict=True), start=1):
            yield self._pretrain(f"Pretraining, {number} of {len(runs)}", f"{PRETRAIN} {flags}{init}", run)
            init = f" --init {run}/checkpoint"
        yield self._halve("The checkpoint in 16 bits", f"{runs[-1]}/checkpoint", "{pretrained}")

    def _teachers(self, tasks: Sequence[DistilledTask]) -> Iterator[Stage]:
        """Yield the stages that install the teachers of some tasks, and make what the students start from and read."""
        first = {task.teacher: task.name for task in reversed(tasks)}
        search = [task.name for task in tasks if any(SEARCH in path for path in task.train)]
        owners = ({MINILM: search[0]} if search else {}) | first
        for teacher, owner in owners.items():
            command = self.command(f"recipes.mini.teachers {teacher} {TEACHERS}/{teacher}")
            yield Stage(f"Teacher: {teacher}", command, self.path(f"{TEACHERS}/{teacher}"), owner)
        for teacher in dict.fromkeys(task.teacher for task in tasks if task.is_trimmed):
            place = f"{TRIMMED}/{teacher}"
            command = self.command(f"recipes.mini.trim {TEACHERS}/{teacher} {place} --data {TRIM_TEXTS}")
            yield Stage(f"A third of the vocabulary of {teacher}", command, self.path(place), first[teacher])
        if search:
            command = self.command(f"recipes.mini.search {{made}} {TEACHERS}/{MINILM} {SEARCH}")
            yield Stage("Queries and texts to rank", command, self.path(SEARCH), search[0])

    def _pretrain(self, title: str, flags: str, run: str) -> Stage:
        corpora = "--corpus {out}/corpus --dev-corpus {out}/corpus-dev"
        return Stage(title, self.command(f"training.pretrain {flags} {corpora} --run-dir {run}"))

    def _halve(self, title: str, checkpoint: str, place: str, task: str = "") -> Stage:
        return Stage(title, self.command(f"recipes.mini.to_fp16 {checkpoint} {place}"), task=task)

    def _trainings(self, names: Iterable[str], task: str = "") -> Iterator[Stage]:
        known = all_trainings()
        for name in names:
            yield Stage(known[name].title, self.command(known[name].command), task=task or name)

    def _exports_and_scores(self, name: str) -> Iterator[Stage]:
        if not self.scores(name).exists():
            for precision in ("fp32", "int8"):
                arguments = self.command(export_command(name, precision))
                yield Stage(f"Export: {name}, {precision}", arguments, self.model(name, precision), name)
        yield Stage(f"Scores: {name}", f"recipes.mini.scores {name} {self._flags}", self.scores(name), name)


def export_command(name: str, precision: str) -> str:
    """Return the pattern of the command that exports the model of a task in a precision.

    A served student also gets its settings and its data, as it may have been trained elsewhere. Text vectors keep the
    data of their task card, whose tables have other columns in training than in dev, and have a single metric.
    """
    task, checkpoint = task_of(name), f"{{out}}/fp16/{name}" if is_distilled(name) else f"{{out}}/{name}/checkpoint"
    flags = [f"export {checkpoint} {{out}}/{name}/{precision}/{name}/1 --precision {precision}"]
    if precision == "int8":
        flags.append("--mixed")
        flags += [f"--metric {task.metric}"] if name != EMBED else []
    if isinstance(task, DistilledTask) and name != EMBED:
        flags.append(f"--train {' '.join(task.train)} --dev {task.dev}")
    return " ".join(flags)


def commands_of(name: str) -> list[str]:
    """Return the commands that train the model of a task, after the models that it starts from.

    The last one of a distilled model exports it, as its settings matter for the scores. Paths use the folders DATA and
    OUT. Scores are only valid for the commands that are recorded with them.
    """
    patterns = [each.command for each in task_of(name).trainings().values()]
    patterns += [export_command(name, "int8")] if is_distilled(name) else []
    names = Pipeline(Arguments(data=Path("DATA"), out=Path("OUT")))
    return [f"python -m {names.command(pattern)}" for pattern in patterns]


def check_commands(place: Path, name: str, record: Mapping[str, Any]) -> None:
    """Raise ValueError if the scores of a task come from other commands than today's."""
    if record.get("commands") != commands_of(name):
        raise ValueError(f"`{place}` was made with other settings; remove it to make it again")


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ValueError for an unknown name of a task."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown task `{unknown[0]}` (one of: {', '.join(known)})")
