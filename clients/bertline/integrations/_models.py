"""Which model a client's vectors come from."""

from __future__ import annotations

from bertline.client import Client
from bertline.errors import ModelNotFound
from bertline.results import Model


def embedding_model(client: Client, name: str = "", version: str = "") -> Model:
    """The model that `client.embed` asks.

    Args:
        client: of the server to look at.
        name: empty for the only loaded model of task `embedding`.
        version: empty for the highest loaded one.

    Raises:
        ModelNotFound: when there is none, or several and no name.
    """
    loaded = [item for item in client.models() if item.task == "embedding"]
    found = [item for item in loaded if name in ("", item.name) and version in ("", item.version)]
    if len({item.name for item in found}) != 1:
        asked = (
            f"`{'/'.join(filter(None, (name, version)))}`" if name or version else "an embedding model without a name"
        )
        names = ", ".join(f"`{item.name}/{item.version}`" for item in loaded) or "none"
        raise ModelNotFound(f"cannot tell which model is meant by {asked}; of task `embedding` are loaded: {names}")
    return max(found, key=lambda item: int(item.version))
