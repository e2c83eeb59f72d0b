"""Paths of the files of the pipeline, and which models come from which."""

from __future__ import annotations

from pathlib import Path

from recipes.mini.distilled import DISTILLED, STUDENT, TEACHER, TEACHER_SUFFIX, DistilledTask
from recipes.mini.tasks import CLOZE, TASKS
from tasks.bundle.files import sha256

NAME = "bertline-mini"
CLOZE_QUESTIONS = "{made}/cloze.json"


class Paths:
    """Paths of files. The results of a task are in the folder of its name.

    Args:
        data: folder of the published data.
        out: folder for all results.
        given: pretrained checkpoint to start from; None for that of the pipeline.
    """

    def __init__(self, data: Path, out: Path, given: Path | None = None) -> None:
        self.data = data
        self.out = out
        self.given = given

    def path(self, pattern: str) -> Path:
        """Return the path of a task's file."""
        return Path(pattern.format(data=self.data, made=self.out / "data"))

    @property
    def pretrained(self) -> Path:
        """Pretrained checkpoint that all tasks start from."""
        return self.given or self.fp16(NAME)

    @property
    def student(self) -> Path:
        """Pretrained checkpoint that all students start from."""
        return self.fp16(STUDENT)

    def fp16(self, name: str) -> Path:
        """Return the place of a checkpoint in 16 bits."""
        return self.out / "fp16" / name

    def pretrained_for(self, name: str) -> Path:
        """Return the pretrained checkpoint of a task."""
        return self.student if distilled(name) else self.pretrained

    def checkpoint(self, name: str) -> Path:
        """Return the checkpoint of a task's best run, or of its distilled model in 16 bits."""
        return self.fp16(name) if distilled(name) else self.out / name / "checkpoint"

    def models(self, name: str, precision: str) -> Path:
        """Return the folder of models with one task's model in one precision."""
        return self.out / name / precision

    def model(self, name: str, precision: str) -> Path:
        """Return the model directory of a task in a precision."""
        return self.models(name, precision) / name / "1"

    def digests(self, name: str) -> dict[str, str]:
        """Return the SHA-256 of each existing file that a task is trained or scored on, named as in `commands_of`."""
        files = {pattern: self.path(pattern) for each in self.trained(name) for pattern in _patterns(each)}
        return {
            pattern.format(data="DATA", made="OUT/data"): sha256(path)
            for pattern, path in files.items()
            if path.is_file()
        }

    def start(self, name: str) -> Path:
        """Return the checkpoint that a task, or a teacher, starts from."""
        after = _after(name)
        if name.endswith(TEACHER_SUFFIX):
            return self.sentence_model
        return self.checkpoint(after) if after else self.pretrained_for(name)

    @property
    def sentence_model(self) -> Path:
        """Model that teaches vectors, and that the other teachers start from."""
        return self.out / "teachers" / TEACHER

    def trained(self, name: str) -> list[str]:
        """Return the models to train for a task after pretraining, in order."""
        before, student = _after(name), distilled(name)
        if student:
            return [*([student.teacher] if student.teacher else []), name]
        return [*(self.trained(before) if before else []), name]

    def scores(self, name: str) -> Path:
        """Return the path of a task's scores."""
        return self.out / name / "scores.json"


def task_names() -> list[str]:
    """Return the names of all tasks, fine-tuned and distilled."""
    return [*(task.name for task in TASKS), *(task.name for task in DISTILLED)]


def distilled(name: str) -> DistilledTask | None:
    """Return a distilled task by name; None for other tasks."""
    return next((task for task in DISTILLED if task.name == name), None)


def _patterns(name: str) -> list[str]:
    """Return the files that one model is trained and scored on."""
    if name == CLOZE:
        return [CLOZE_QUESTIONS, cloze_dev()]
    own = next((task for task in TASKS if task.name == name), None)
    student = distilled(name.removesuffix(TEACHER_SUFFIX))
    task = own or student
    assert task is not None
    more = (*student.unlabelled, student.scored_on) if student and not own else ()
    return [*task.train, *(file for file in (*more, task.dev, task.test) if file)]


def cloze_dev() -> str:
    """Return the dev data of the cloze questions: those of the task that starts from them."""
    return next(task.dev for task in TASKS if task.after == CLOZE and task.kind == "spans")


def _after(name: str) -> str | None:
    return next((task.after for task in TASKS if task.name == name), None)
