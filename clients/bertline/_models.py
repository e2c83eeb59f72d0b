"""Choice of a model, as the server chooses it."""

from __future__ import annotations

from collections.abc import Iterable

from bertline.errors import ModelNotFound
from bertline.results import Model


def model_of_task(models: Iterable[Model], task: str, name: str = "", version: str = "") -> Model:
    """Return the model of a task that the server would choose.

    Args:
        models: models of the server.
        task: `embedding`, `classification` or another, see `Model.task`.
        name: name of the model; empty for the only loaded model of the task.
        version: model version; empty for the highest loaded version.

    Raises:
        ModelNotFound: if there is none, or if there are several and no name is given.
    """
    loaded = [item for item in models if item.task == task]
    found = [item for item in loaded if name in ("", item.name) and version in ("", item.version)]
    if len({item.name for item in found}) != 1:
        wanted = "/".join(filter(None, (name, version)))
        missing = f"no model `{wanted}` is loaded" if wanted else f"no model of task `{task}` is loaded"
        problem = f"several models of task `{task}` are loaded; give a name" if found else missing
        names = ", ".join(f"`{item.name}/{item.version}`" for item in loaded) or "none"
        raise ModelNotFound(f"{problem} (loaded models of task `{task}`: {names})")
    return max(found, key=lambda item: int(item.version))
