"""Stages that make bertline-mini and the shipped models: commands in order, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from recipes.ablations.tables import TableName
from recipes.mini.commands import check_commands, export_arguments, quoted, training_arguments, words
from recipes.mini.data import STS_DEV
from recipes.mini.distilled import DISTILLED, STUDENT, DistilledTask
from recipes.mini.paths import NAME, Paths, distilled, task_names
from recipes.mini.tasks import CLOZE, TASKS
from tasks.text.json_files import read_json
from training.checkpoint.task_card import read_task_card
from training.checkpoint.weights import checkpoint_digest
from training.data.columns import Columns

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


class Pipeline(Paths):
    """Stages for given data."""

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments.data, arguments.out, arguments.pretrained)
        self.only = arguments.only

    @property
    def ablations(self) -> Path:
        """Run directory of the ablations."""
        return self.out / ABLATIONS

    def pretraining_runs(self) -> list[Path]:
        """Return the run of each stage of pretraining; that of the last has the network's name."""
        return [*(self.out / f"{NAME}-{number}" for number in range(1, len(PRETRAINING_STAGES))), self.out / NAME]

    def scored(self) -> list[str]:
        """Return the names of the tasks with scores.

        Raises:
            ValueError: if one comes from another checkpoint, other commands or other data than today's.
        """
        names = [name for name in task_names() if self.scores(name).exists()]
        for name in names:
            pretrained = self.pretrained_for(name)
            needed = [pretrained, self.checkpoint(name)] if distilled(name) else [pretrained]
            if missing := [place for place in needed if not place.exists()]:
                raise ValueError(
                    f"missing checkpoint: `{missing[0]}`; restore it, or remove its result `{self.out / name}`"
                )
            record = read_json(self.scores(name))
            self.check_origin(name, record["pretrained"], pretrained)
            check_commands(self.out / name, name, record)
            before = record.get("data", {})
            if other := [file for file, digest in self.digests(name).items() if before.get(file) != digest]:
                raise ValueError(f"`{self.out / name}` was made from another `{other[0]}`; remove it to make it again")
        return names

    def check_origin(self, name: str, digest: str, checkpoint: Path) -> None:
        """Raise if the results of a task do not come from a checkpoint.

        Raises:
            ValueError: naming both.
        """
        if digest != checkpoint_digest(checkpoint):
            raise ValueError(f"`{self.out / name}` does not come from `{checkpoint}`; remove it to make it again")

    def stages(self) -> Iterator[Stage]:
        """Yield all stages in order. A task with scores needs no other stage."""
        data, out = quoted(self.data), quoted(self.out)
        chosen = [task for task in TASKS if self._wanted(task.name)]
        students = [task for task in DISTILLED if self._wanted(task.name)]
        to_distil = [task for task in students if not self.checkpoint(task.name).exists()]
        needs_student = bool(to_distil) and not self.student.exists()
        if chosen or students:
            yield Stage(DATA, f"recipes.mini.data {data} {out}/data")
        if (chosen and not self.given) or needs_student:
            yield from self._corpora(data, out)
        if chosen and not self.given:
            yield from self._pretraining(out)
        to_do = [task for task in chosen if not self.scores(task.name).exists()]
        before = dict.fromkeys(name for task in to_do for name in self.trained(task.name)[:-1])
        for name in [name for name in before if name not in {task.name for task in chosen}]:
            yield Stage(title_of(name), training_arguments(self, name), task=name)
        for task in chosen:
            if task in to_do:
                yield Stage(title_of(task.name), training_arguments(self, task.name), task=task.name)
            yield from self._exports_and_scores(task.name)
        if needs_student:
            yield from self._student(out)
        if to_distil:
            installation = f"recipes.mini.teachers {quoted(self.sentence_model)}"
            yield Stage("The sentence model that teaches", installation, self.sentence_model, to_distil[0].name)
        for student in students:
            yield from self._distilled(student)
        if self._wanted(ABLATIONS):
            place, tables = quoted(self.ablations), words(TABLES)
            arguments = f"recipes.ablations --data {data} --run-dir {place} --scale mini --tables {tables}"
            yield Stage("Ablations", arguments, task=ABLATIONS)
        yield Stage("Keep the models", f"recipes.mini.publish {self._flags}")
        yield Stage("The page of results", f"recipes.mini.results {self._flags}")

    @property
    def _flags(self) -> str:
        """Flags of the commands of this package."""
        given = f" --pretrained {quoted(self.given)}" if self.given else ""
        return f"--data {quoted(self.data)} --out {quoted(self.out)}{given}"

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
        corpora, runs, init = f"--corpus {out}/corpus --dev-corpus {out}/corpus-dev", self.pretraining_runs(), ""
        for number, (flags, run) in enumerate(zip(PRETRAINING_STAGES, runs, strict=True), start=1):
            arguments = f"training.pretrain {PRETRAIN} {flags}{init} {corpora} --run-dir {quoted(run)}"
            yield Stage(f"Pretraining, {number} of {len(runs)}", arguments)
            init = f" --init {quoted(run)}/checkpoint"
        halve = f"recipes.mini.to_fp16 {quoted(runs[-1])}/checkpoint {quoted(self.pretrained)}"
        yield Stage("The checkpoint in 16 bits", halve)

    def _student(self, out: str) -> Iterator[Stage]:
        run = self.out / STUDENT
        corpora = f"--corpus {out}/corpus --dev-corpus {out}/corpus-dev --run-dir {quoted(run)}"
        yield Stage("Pretraining of the students' network", f"training.pretrain {STUDENT_PRETRAINING} {corpora}")
        halve = f"recipes.mini.to_fp16 {quoted(run)}/checkpoint {quoted(self.student)}"
        yield Stage("The students' network in 16 bits", halve)

    def _distilled(self, task: DistilledTask) -> Iterator[Stage]:
        """Yield the stages of a distilled model: fine-tune a teacher, distil, halve, export twice, score."""
        if not self.checkpoint(task.name).exists():
            for name in self.trained(task.name):
                yield Stage(title_of(name), training_arguments(self, name), task=task.name)
            halve = (
                f"recipes.mini.to_fp16 {quoted(self.out / task.name)}/checkpoint {quoted(self.checkpoint(task.name))}"
            )
            yield Stage(f"{task.name} in 16 bits", halve, task=task.name)
        yield from self._exports_and_scores(task.name)

    def _exports_and_scores(self, name: str) -> Iterator[Stage]:
        if not self.scores(name).exists():
            for precision in ("fp32", "int8"):
                arguments = export_arguments(self, name, precision)
                yield Stage(f"Export: {name}, {precision}", arguments, self.model(name, precision), name)
        yield Stage(f"Scores: {name}", f"recipes.mini.scores {name} {self._flags}", self.scores(name), name)


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise ValueError for an unknown name of a task."""
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"unknown task `{unknown[0]}` (one of: {', '.join(known)})")


def title_of(name: str) -> str:
    """Return the title of the stage that trains a model."""
    found = {CLOZE: "Synthetic cloze questions"}
    found |= {task.name: f"Fine-tuning: {task.title}" for task in TASKS}
    found |= {task.teacher: f"Teacher: {task.title}" for task in DISTILLED if task.teacher}
    found |= {task.name: f"Distillation: {task.title}" for task in DISTILLED}
    return found.get(name, name)
