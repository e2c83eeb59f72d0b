"""Client of a Bertline server: embeddings, classification, entities, answers and more over gRPC.

from bertline import Client
with Client("127.0.0.1:50051") as client:
    vectors = client.embed(["one text", "another text"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertline.async_client import AsyncClient
    from bertline.client import Client
    from bertline.errors import (
        BertlineError,
        ConnectionFailed,
        InvalidInput,
        InvalidItem,
        ModelNotFound,
        OtherSpace,
        Overloaded,
        PermissionDenied,
        ServerError,
        TextsCut,
        TimedOut,
        Unauthenticated,
    )
    from bertline.results import (
        Answer,
        Choice,
        Classification,
        Entity,
        LabelScore,
        MaskFill,
        Model,
        RankedDocument,
        Ranking,
        Span,
        SparseVector,
        TaggedWord,
        Tagging,
        Timings,
        Tokenized,
        TokenScore,
        TokenVectors,
        Usage,
    )

__all__ = [
    "Answer",
    "AsyncClient",
    "BertlineError",
    "Choice",
    "Classification",
    "Client",
    "ConnectionFailed",
    "Entity",
    "InvalidInput",
    "InvalidItem",
    "LabelScore",
    "MaskFill",
    "Model",
    "ModelNotFound",
    "OtherSpace",
    "Overloaded",
    "PermissionDenied",
    "RankedDocument",
    "Ranking",
    "ServerError",
    "Span",
    "SparseVector",
    "TaggedWord",
    "Tagging",
    "TextsCut",
    "TimedOut",
    "Timings",
    "TokenScore",
    "TokenVectors",
    "Tokenized",
    "Unauthenticated",
    "Usage",
]

_MODULES = ("bertline.errors", "bertline.results", "bertline.client", "bertline.async_client")


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that `import bertline.v1`, as a server does, does not load the client."""
    if name in __all__:
        for module in map(import_module, _MODULES):
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
