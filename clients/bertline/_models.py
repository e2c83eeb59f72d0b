"""Choice of a model, as the server chooses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from bertline.errors import ModelNotFound
from bertline.results import Model

VersionT = TypeVar("VersionT", bound=Any)


def can_rerank(model: Model, is_named: bool) -> bool:
    """Return whether a model can rank documents; those with labels or answers only if they are named."""
    settings = model.manifest.get("settings")
    if model.task == "spans":
        return is_named and isinstance(settings, dict) and any(map(settings.get, ("unanswerable", "null_is_trained")))
    if model.task == "token-embedding":
        return isinstance(settings, dict) and bool(settings.get("normalize"))
    return model.task == "regression" or (is_named and model.task == "classification")


def can_zero_shot(model: Model) -> bool:
    """Return whether a model classifies by labels of a request: it knows what entailment is."""
    return model.task == "classification" and any(label.lower().startswith("entail") for label in model.labels)


def highest_versions(models: Iterable[VersionT]) -> list[VersionT]:
    """Return the highest version of each name, the only one that a server judges if no version is requested."""
    found: dict[str, VersionT] = {item.name: item for item in sorted(models, key=lambda item: int(item.version))}
    return list(found.values())


def model_of_task(
    models: Iterable[Model],
    task: str,
    name: str = "",
    version: str = "",
    fits: Callable[[Model], bool] | None = None,
) -> Model:
    """Return the model of a task that the server would choose.

    Args:
        models: models of the server.
        task: `embedding`, `classification` or another, see `Model.task`.
        name: name of the model; empty for the only one whose highest loaded version is of the task.
        version: model version; empty for the highest loaded version.
        fits: returns whether a model does the task; None if its own task must be this one.

    Raises:
        ModelNotFound: if there is none, or if there are several and no name is given.
    """

    def of_task(items: Iterable[Model]) -> list[Model]:
        return [item for item in items if (fits(item) if fits else item.task == task)]

    loaded = [item for item in models if item.task]
    names = {name} if name else {item.name for item in of_task(highest_versions(loaded))}
    wanted = [item for item in loaded if item.name in names and version in ("", item.version)]
    found = of_task(highest_versions(wanted))
    if len(names) == len(found) == 1:
        return found[0]
    ref = "/".join(filter(None, (name, version)))
    missing = (
        f"no model `{ref}` of task `{task}` is loaded" if ref else f"no model's highest version is of task `{task}`"
    )
    problem = f"several models of task `{task}` are loaded; give a name" if len(names) > 1 else missing
    listing = ", ".join(f"`{item.name}/{item.version}`" for item in of_task(loaded)) or "none"
    raise ModelNotFound(f"{problem} (loaded models of task `{task}`: {listing})")
