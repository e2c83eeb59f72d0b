"""What a run was asked for, as `recipe.json` and the states keep it."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tasks.json_files import read_json

RECIPE_FILE = "recipe.json"
PLACES_AND_PACE = (
    "run_dir",
    "micro_batch_size",
    "log_every",
    "checkpoint_every",
    "keep_last",
    "compile",
)
"""Fields of a recipe that may change when a run is resumed."""
UNTIL_THE_END = ("select",)
"""Fields that may change, too, until the run is finished: they say what is made of its states."""


class RunMismatchError(ValueError):
    """A run directory holds something else than what is asked for."""


class RecipeRecord:
    """A recipe and the digests of its data, to be compared with what a run was started with.

    Args:
        recipe: a dataclass.
        found: digests and the like, written beside the recipe's fields.
        places: fields that say where data lie; what they hold is compared by `found`, and whether there are any.
    """

    def __init__(self, recipe: Any, found: Mapping[str, Any], *, places: tuple[str, ...]) -> None:
        self.values = recipe_fields(recipe) | dict(found)
        self._unrecorded = flatten(default_fields(type(recipe)) | dict(found))
        self._places = places

    def difference(self, before: Mapping[str, Any], *, is_finished: bool = True) -> str:
        """The first field in which a record of `values` differs, in words that follow "with"; empty if none does.

        A field that there was not yet had what is its default now, and a digest what it is now.
        """
        free = PLACES_AND_PACE if is_finished else PLACES_AND_PACE + UNTIL_THE_END
        was, now = self._unrecorded | flatten(before), flatten(self.values)
        for key in dict.fromkeys([*now, *was]):
            if key.partition(".")[0] not in free and self._differs(key, was.get(key), now.get(key)):
                return _say_difference(key, was.get(key), now.get(key))
        return ""

    def _differs(self, key: str, was: Any, now: Any) -> bool:
        is_place = key.partition(".")[0] in self._places
        return bool(was) != bool(now) if is_place else bool(was != now)

    def check(self, before: Mapping[str, Any], run: Path, *, is_finished: bool = True) -> None:
        """Compare with what a run was started with.

        Raises:
            RunMismatchError: naming the field that differs, or the other command that the run is of.
        """
        if (other := kind_of_run(before)) != kind_of_run(self.values):
            raise RunMismatchError(_another_command(run, other))
        if difference := self.difference(before, is_finished=is_finished):
            raise RunMismatchError(
                f"run `{run}` was started with {difference}; choose another run directory, or remove it to begin anew"
            )


def kind_of_run(values: Mapping[str, Any]) -> str:
    """What a run does, as its recipe shows."""
    return "contrastive training" if "mode" in values else "fine-tuning" if "train" in values else "pretraining"


def check_no_run(directory: Path) -> None:
    """Whether a directory that is to hold many runs is not itself one.

    Raises:
        RunMismatchError: naming the command that the run is of.
    """
    path = directory / RECIPE_FILE
    if path.is_file():
        raise RunMismatchError(_another_command(directory, kind_of_run(read_json(path))))


def _another_command(run: Path, kind: str) -> str:
    return f"`{run}` is a run of {kind}; choose another run directory"


def _say_difference(key: str, was: Any, now: Any) -> str:
    """Digests tell people nothing but that they differ."""
    if not (_is_digest(was) or _is_digest(now)):
        return f"{key} `{was}`, not `{now}`"
    which = "other contents of" if was and now else "a" if was else "no"
    name = key.removeprefix("data.").removesuffix("_digest").removesuffix("_sha256").replace("_", " ")
    return f"{which} `{name}`"


def _is_digest(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(item, str) and re.fullmatch("[0-9a-f]{64}", item) for item in values)


def recipe_fields(recipe: Any) -> dict[str, Any]:
    """The fields of a recipe that can be set, as JSON-compatible values."""
    return _jsonable({item.name: getattr(recipe, item.name) for item in dataclasses.fields(recipe) if item.init})


def default_fields(recipe_type: type) -> dict[str, Any]:
    """The defaults of a recipe, where it has any, as `recipe_fields` writes them down."""
    found = {}
    for item in dataclasses.fields(recipe_type):
        if item.init and item.default is not dataclasses.MISSING:
            found[item.name] = item.default
        elif item.default_factory is not dataclasses.MISSING:
            found[item.name] = item.default_factory()
    return _jsonable(found)


def _jsonable(values: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(values, default=_plain))
    return found


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def check_types(recipe_type: type, values: Mapping[str, Any], path: Path) -> None:
    """Whether each value that a file has of a recipe's fields is of their kind.

    Raises:
        ValueError: naming the file and the field.
    """
    for name, kind in get_type_hints(recipe_type).items():
        if name in values and not _fits(values[name], kind):
            raise ValueError(f"broken `{path}`: `{name}` cannot be `{values[name]}`; mend it, or give another run")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a JSON value may be that of a field of some type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, item) for item in arguments)
    if origin is Annotated:
        return _fits(value, arguments[0])
    if origin is Literal:
        return any(isinstance(value, type(item)) for item in arguments)
    if origin is tuple:
        return isinstance(value, list) and all(_fits(item, arguments[0]) for item in value)
    if dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        return isinstance(value, Mapping) and all(
            _fits(item, hints[name]) for name, item in value.items() if name in hints
        )
    if kind is float:
        return isinstance(value, int | float)
    return isinstance(value, str if kind is Path else kind)
