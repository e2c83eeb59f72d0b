"""Choice of a model, as the server chooses it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bertline.errors import ModelNotFound
from bertline.results import Model


def can_rerank(model: Model, is_named: bool) -> bool:
    """Return whether a model can rank documents; without being named only if it needs no label."""
    settings = model.manifest.get("settings")
    knows_no_answer = isinstance(settings, dict) and (settings.get("unanswerable") or settings.get("null_is_trained"))
    if model.task == "spans":
        return bool(knows_no_answer)
    if model.task == "token-embedding":
        return isinstance(settings, dict) and bool(settings.get("normalize"))
    return model.task == "regression" or (is_named and model.task == "classification")


def can_zero_shot(model: Model) -> bool:
    """Return whether a model classifies by labels of a request: it knows what entailment is."""
    return model.task == "classification" and any(label.lower().startswith("entail") for label in model.labels)


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
        name: name of the model; empty for the only loaded model of the task.
        version: model version; empty for the highest loaded version.
        fits: returns whether a model does the task; None if its own task is this one.

    Raises:
        ModelNotFound: if there is none, or if there are several and no name is given.
    """
    loaded = [item for item in models if (fits(item) if fits else item.task == task)]
    found = [item for item in loaded if name in ("", item.name) and version in ("", item.version)]
    if len({item.name for item in found}) != 1:
        wanted = "/".join(filter(None, (name, version)))
        missing = f"no model `{wanted}` is loaded" if wanted else f"no model of task `{task}` is loaded"
        problem = f"several models of task `{task}` are loaded; give a name" if found else missing
        names = ", ".join(f"`{item.name}/{item.version}`" for item in loaded) or "none"
        raise ModelNotFound(f"{problem} (loaded models of task `{task}`: {names})")
    return max(found, key=lambda item: int(item.version))
