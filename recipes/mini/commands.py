"""Commands that train and export the models: arguments of `python -m`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from recipes.mini.distilled import DISTILLED, EMBED, TEACHER_SUFFIX, DistilledTask
from recipes.mini.paths import CLOZE_QUESTIONS, Paths, cloze_dev, distilled
from recipes.mini.tasks import CLOZE, TASKS, WINDOWS, MiniTask


def training_arguments(paths: Paths, name: str) -> str:
    """Return the arguments of `python -m` that train the model of a task, a teacher or what a task starts from."""
    if name == CLOZE:
        return _cloze(paths)
    if name.endswith(TEACHER_SUFFIX):
        return _teacher(paths, name)
    student = distilled(name)
    return _distil(paths, student) if student else _grid(paths, next(task for task in TASKS if task.name == name))


def _teacher(paths: Paths, name: str) -> str:
    task = next(task for task in DISTILLED if task.teacher == name)
    return (
        f"training.finetune {task.kind} --checkpoint {quoted(paths.sentence_model)} "
        f"--train {_paths(paths, task.train)} --dev {_paths(paths, [task.dev])} "
        f"--run-dir {quoted(paths.out / name)} --checkpoint-every 0 {task.teacher_flags}"
    )


def _distil(paths: Paths, task: DistilledTask) -> str:
    teacher = paths.out / task.teacher / "checkpoint" if task.teacher else paths.sentence_model
    unlabelled = f"--unlabelled {_paths(paths, task.unlabelled)} " if task.unlabelled else ""
    return (
        f"training.distill {task.kind} --teacher {quoted(teacher)} --checkpoint {quoted(paths.student)} "
        f"--train {_paths(paths, task.train)} {unlabelled}--dev {_paths(paths, [task.dev])} "
        f"--run-dir {quoted(paths.out / task.name)} --checkpoint-every 0 {task.flags}"
    )


def _paths(paths: Paths, files: Iterable[str]) -> str:
    return " ".join(quoted(paths.path(file)) for file in files)


def _grid(paths: Paths, task: MiniTask) -> str:
    train, dev = _paths(paths, task.train), quoted(paths.path(task.dev))
    return (
        f"training.grid {task.kind} --checkpoint {quoted(paths.start(task.name))} "
        f"--train {train} --dev {dev} --run-dir {quoted(paths.out)}/{task.name} --metric {task.metric} "
        f"--learning-rates {words(task.learning_rates)} --epochs {task.epochs:g} --seeds {words(task.seeds)} "
        f"--checkpoint-every 0 --dropout 0.1 {task.flags}"
    ).strip()


def _cloze(paths: Paths) -> str:
    return (
        f"training.finetune spans --checkpoint {quoted(paths.pretrained)} "
        f"--train {quoted(paths.path(CLOZE_QUESTIONS))} --dev {quoted(paths.path(cloze_dev()))} "
        f"--run-dir {quoted(paths.out)}/{CLOZE} {WINDOWS} --num-epochs 1 --learning-rate 5e-4 --dropout 0"
    )


def export_arguments(paths: Paths, name: str, precision: str) -> str:
    """Return the arguments of `python -m` that export the model of a task in a precision.

    A served student also gets its settings and its data, as it may have been trained elsewhere. Text vectors keep the
    data of their task card, whose tables have other columns in training than in dev, and have a single metric.
    """
    task = next((task for task in (*TASKS, *DISTILLED) if task.name == name and name != EMBED), None)
    wanted = precision
    if precision == "int8":
        wanted = f"int8 --mixed --metric {task.metric}" if task else "int8 --mixed"
    if isinstance(task, DistilledTask):
        wanted += f" {task.export_flags}" if task.export_flags else ""
        wanted += f" --train {_paths(paths, task.train)} --dev {_paths(paths, [task.scored_on or task.dev])}"
    return f"export {quoted(paths.checkpoint(name))} {quoted(paths.model(name, precision))} --precision {wanted}"


def commands_of(name: str) -> list[str]:
    """Return the commands that train the model of a task, after the models that it starts from.

    The last one of a distilled model exports it, as its settings matter for the scores. Paths use the folders DATA and
    OUT. Scores are only valid for the commands that are recorded with them.
    """
    paths = Paths(Path("DATA"), Path("OUT"))
    commands = [training_arguments(paths, each) for each in paths.trained(name)]
    commands += [export_arguments(paths, name, "int8")] if distilled(name) else []
    return [f"python -m {command}" for command in commands]


def check_commands(place: Path, name: str, record: Mapping[str, Any]) -> None:
    """Raise ValueError if the scores of a task come from other commands than today's."""
    if record.get("commands") != commands_of(name):
        raise ValueError(f"`{place}` was made with other settings; remove it to make it again")


def quoted(path: Path) -> str:
    """Return a path as a word of a command."""
    return shlex.quote(str(path))


def words(values: Iterable[object]) -> str:
    """Return values as words of a command."""
    return " ".join(map(str, values))
