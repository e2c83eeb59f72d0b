"""Which model of a server answers."""

from __future__ import annotations

from collections.abc import Iterable

from bertline.errors import ModelNotFound
from bertline.results import Model


def model_of_task(models: Iterable[Model], task: str, name: str = "", version: str = "") -> Model:
    """The model that does a task, as the server would choose it: the highest version, unless another is named.

    Args:
        models: what the server has.
        task: `embedding`, `classification` or another, see `Model.task`.
        name: empty for the only loaded model of the task.
        version: empty for the highest loaded one.

    Raises:
        ModelNotFound: when there is none, or several and no name.
    """
    loaded = [item for item in models if item.task == task]
    found = [item for item in loaded if name in ("", item.name) and version in ("", item.version)]
    if len({item.name for item in found}) != 1:
        asked = f"`{'/'.join(filter(None, (name, version)))}`" if name or version else "a model without a name"
        names = ", ".join(f"`{item.name}/{item.version}`" for item in loaded) or "none"
        raise ModelNotFound(f"cannot tell which model is meant by {asked}; of task `{task}` are loaded: {names}")
    return max(found, key=lambda item: int(item.version))
