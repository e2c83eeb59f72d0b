"""Recipe of a run, as `recipe.json` and the states store it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.schema import check_known_fields
from tasks.text.json_files import read_json
from training.checkpoint.hub import recorded_name

RECIPE_FILE = "recipe.json"
FREE_FIELDS = (
    "run_dir",
    "micro_batch_size",
    "log_every",
    "checkpoint_every",
    "keep_last",
    "compile",
    "packing",
    "data_workers",
)
"""Recipe fields that may change when a run resumes."""
FREE_UNTIL_FINISHED = {"select": {"last", "best"}}
"""Recipe fields that decide what happens after the last step -> values among which they may change until then."""


class RunMismatchError(ValueError):
    """A run directory was started with another recipe, other data or another command."""


class RecipeRecord:
    """Recipe and digests of a run, compared with the ones that it was started with.

    Args:
        recipe: a dataclass; `stage` of its class is recorded, too.
        found: digests of data and weights, written with the recipe's fields.
        paths: fields with paths. Digests stand for their contents, so only whether they are empty is compared.
    """

    def __init__(self, recipe: Any, found: Mapping[str, Any], *, paths: tuple[str, ...]) -> None:
        self.values = {"stage": recipe.stage} | recipe_fields(recipe) | dict(found)
        self._paths = paths
        self._defaults = flatten(default_fields(type(recipe)))

    def difference(self, before: Mapping[str, Any], *, is_finished: bool = True) -> str:
        """Describe the first field that differs from an earlier record, as "field `old`, not `new`"; "" if none."""
        free = {} if is_finished else FREE_UNTIL_FINISHED
        was, now = self._defaults | flatten(before), flatten(self.values)
        for key in dict.fromkeys([*now, *was]):
            field, old, new = key.partition(".")[0], was.get(key), now.get(key)
            is_same = bool(old) == bool(new) if field in self._paths else old == new
            if field in FREE_FIELDS or is_same or (field in free and {old, new} <= free[field]):
                continue
            if not (_is_digest(old) or _is_digest(new)):
                return f"{key} `{old}`, not `{new}`"
            which = "other contents of" if old and new else "a" if old else "no"
            name = key.removeprefix("data.").removesuffix("_digest").removesuffix("_sha256").replace("_", " ")
            return f"{which} `{name}`"  # people cannot read digests
        return ""

    def check(self, before: Mapping[str, Any], run: Path, *, is_finished: bool = True) -> None:
        """Compare with the record that a run was started with.

        Raises:
            RunMismatchError: names the field that differs, or the run's stage if that is another one.
        """
        if stage_of(before) != self.values["stage"]:
            raise _other_stage(run, before)
        if difference := self.difference(before, is_finished=is_finished):
            raise RunMismatchError(
                f"run `{run}` was started with {difference}; choose another run directory, or remove it to start again"
            )


def stage_of(values: Mapping[str, Any]) -> str:
    """Return the stage in a `recipe.json`."""
    return str(values.get("stage", "an unknown stage"))


def check_no_run(directory: Path) -> None:
    """Check that a directory for several runs is not itself a run.

    Raises:
        RunMismatchError: names the run's stage.
    """
    path = directory / RECIPE_FILE
    if path.is_file():
        raise _other_stage(directory, read_json(path))


def _other_stage(run: Path, values: Mapping[str, Any]) -> RunMismatchError:
    return RunMismatchError(f"`{run}` is a run of {stage_of(values)}; choose another run directory")


def _is_digest(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return bool(values) and all(isinstance(item, str) and re.fullmatch("[0-9a-f]{64}", item) for item in values)


def recipe_fields(recipe: Any) -> dict[str, Any]:
    """Return the fields of a recipe that a user can set, as JSON-compatible values."""
    return _jsonable({item.name: getattr(recipe, item.name) for item in dataclasses.fields(recipe) if item.init})


def default_fields(recipe_type: type) -> dict[str, Any]:
    """Return the defaults of a recipe's fields, in the format of `recipe_fields`."""
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
    if isinstance(value, Path):
        return recorded_name(value)
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their dotted names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def check_types(recipe_type: type, values: Mapping[str, Any], path: Path) -> None:
    """Raise ValueError, naming the file and the field, if a value in a recipe file has a wrong type."""
    try:
        check_known_fields(recipe_type, values)
    except ValueError as error:
        raise ValueError(f"broken `{path}`: {error}; correct it, or give another run") from error
