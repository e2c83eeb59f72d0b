"""Commands that train and export the models: arguments of `python -m`."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mini.distilled import DISTILLED, EMBED, TEACHER_SUFFIX, DistilledTask
from mini.places import CLOZE_QUESTIONS, Places, cloze_dev, distilled
from mini.tasks import CLOZE, TASKS, WINDOWS, MiniTask


def training_arguments(places: Places, name: str) -> str:
    """Return the arguments of `python -m` that train the model of a task, a teacher or what a task starts from."""
    if name == CLOZE:
        return _cloze(places)
    if name.endswith(TEACHER_SUFFIX):
        return _teacher(places, name)
    student = distilled(name)
    return _distil(places, student) if student else _grid(places, next(task for task in TASKS if task.name == name))


def _teacher(places: Places, name: str) -> str:
    task = next(task for task in DISTILLED if task.teacher == name)
    return (
        f"training.finetune {task.kind} --checkpoint {quoted(places.sentence_model)} "
        f"--train {_paths(places, task.train)} --dev {_paths(places, [task.dev])} "
        f"--run-dir {quoted(places.out / name)} --checkpoint-every 0 {task.teacher_flags}"
    )


def _distil(places: Places, task: DistilledTask) -> str:
    teacher = places.out / task.teacher / "checkpoint" if task.teacher else places.sentence_model
    unlabelled = f"--unlabelled {_paths(places, task.unlabelled)} " if task.unlabelled else ""
    return (
        f"training.distill {task.kind} --teacher {quoted(teacher)} --checkpoint {quoted(places.student)} "
        f"--train {_paths(places, task.train)} {unlabelled}--dev {_paths(places, [task.dev])} "
        f"--run-dir {quoted(places.out / task.name)} --checkpoint-every 0 {task.flags}"
    )


def _paths(places: Places, files: Iterable[str]) -> str:
    return " ".join(quoted(places.path(file)) for file in files)


def _grid(places: Places, task: MiniTask) -> str:
    train, dev = _paths(places, task.train), quoted(places.path(task.dev))
    return (
        f"training.grid {task.kind} --checkpoint {quoted(places.start(task.name))} "
        f"--train {train} --dev {dev} --run-dir {quoted(places.out)}/{task.name} --metric {task.metric} "
        f"--learning-rates {words(task.learning_rates)} --epochs {task.epochs:g} --seeds {words(task.seeds)} "
        f"--checkpoint-every 0 --dropout 0.1 {task.flags}"
    ).strip()


def _cloze(places: Places) -> str:
    return (
        f"training.finetune spans --checkpoint {quoted(places.pretrained)} "
        f"--train {quoted(places.path(CLOZE_QUESTIONS))} --dev {quoted(places.path(cloze_dev()))} "
        f"--run-dir {quoted(places.out)}/{CLOZE} {WINDOWS} --num-epochs 1 --learning-rate 5e-4 --dropout 0"
    )


def export_arguments(places: Places, name: str, precision: str) -> str:
    """Return the arguments of `python -m` that export the model of a task in a precision."""
    wanted = f"int8 --mixed{_metric_flag(name)}" if precision == "int8" else precision
    checkpoint, result = quoted(places.checkpoint(name)), quoted(places.model(name, precision))
    return f"export {checkpoint} {result} --precision {wanted}{_export_flags(places, name)}"


def _export_flags(places: Places, name: str) -> str:
    """Return the settings of a served student, and its data, as it may have been trained elsewhere.

    Text vectors keep the data of their task card, whose tables have other columns in training than in dev.
    """
    task = distilled(name)
    if task is None or name == EMBED:
        return ""
    settings = f" {task.export_flags}" if task.export_flags else ""
    return f"{settings} --train {_paths(places, task.train)} --dev {_paths(places, [task.scored_on or task.dev])}"


def _metric_flag(name: str) -> str:
    """Return the flag for a task's metric; text vectors have a single one."""
    metrics = {task.name: task.metric for task in (*TASKS, *DISTILLED) if task.name != EMBED}
    return f" --metric {metrics[name]}" if name in metrics else ""


def commands_of(name: str) -> list[str]:
    """Return the commands that train the model of a task, after the models that it starts from.

    The last one of a distilled model exports it, as its settings matter for the scores. Paths use the folders DATA and
    OUT. Scores are only valid for the commands that are recorded with them.
    """
    places = Places(Path("DATA"), Path("OUT"))
    commands = [training_arguments(places, each) for each in places.trained(name)]
    commands += [export_arguments(places, name, "int8")] if distilled(name) else []
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
