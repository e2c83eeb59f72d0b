"""An HTTP service before a Bertline server: vectors, labels, and search in an index that search.py has written.

pip install ./clients fastapi uvicorn faiss-cpu
BERTLINE_INDEX=notes.index uvicorn app:app --app-dir clients/examples --port 8000
curl localhost:8000/embed -H 'content-type: application/json' -d '{"texts": ["A first text."]}'
curl localhost:8000/search -H 'content-type: application/json' -d '{"text": "Where do owls sleep?", "top_k": 3}'

BERTLINE_TARGET (127.0.0.1:50051 unless it is set) and BERTLINE_TOKEN name the server; BERTLINE_INDEX may be left out.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from search import Index

from bertline import (
    AsyncClient,
    BertlineError,
    ConnectionFailed,
    InvalidInput,
    ModelNotFound,
    Overloaded,
    TimedOut,
)

STATUSES: dict[type[BertlineError], int] = {
    InvalidInput: 422,
    ModelNotFound: 404,
    Overloaded: 503,
    ConnectionFailed: 503,
    TimedOut: 504,
}
"""An Overloaded that is final is 413: trying again will not help. Anything else (credentials of this service, a fault
of the server) is not the caller's business: 502."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client for the whole life of the service: it belongs to the event loop, and its connection is shared."""
    folder = os.environ.get("BERTLINE_INDEX")
    app.state.index = Index(Path(folder)) if folder else None
    target = os.environ.get("BERTLINE_TARGET") or "127.0.0.1:50051"
    async with AsyncClient(target, token=os.environ.get("BERTLINE_TOKEN") or None, timeout=10) as client:
        app.state.client = client
        yield


app = FastAPI(title="Bertline over HTTP", lifespan=lifespan)


def get_client(request: Request) -> AsyncClient:
    """The client of this service."""
    return request.app.state.client


ClientNow = Annotated[AsyncClient, Depends(get_client)]


class Texts(BaseModel):
    """What `/embed` and `/classify` take."""

    texts: list[str] = Field(min_length=1, max_length=1024)
    model: str = ""
    truncate: bool = False


class Query(BaseModel):
    """What `/search` takes."""

    text: str
    top_k: int = Field(5, ge=1, le=100)


@app.exception_handler(BertlineError)
async def tell(request: Request, error: BertlineError) -> JSONResponse:
    """Answer with the status of an error, and which texts are wrong."""
    status = next((code for kind, code in STATUSES.items() if isinstance(error, kind)), 502)
    if isinstance(error, Overloaded) and error.is_final:
        status = 413
    content: dict[str, Any] = {"detail": "the model server failed" if status == 502 else str(error)}
    if isinstance(error, InvalidInput):
        content["items"] = [{"index": item.index, "reason": item.reason} for item in error.items]
    return JSONResponse(content, status, headers={"Retry-After": "1"} if status == 503 else None)


@app.post("/embed")
async def embed(body: Texts, client: ClientNow) -> dict[str, Any]:
    """A vector for each text."""
    vectors = await client.embed(body.texts, model=body.model, truncate=body.truncate)
    return {"vectors": vectors.tolist()}


@app.post("/classify")
async def classify(body: Texts, client: ClientNow) -> dict[str, Any]:
    """Labels with their probabilities for each text, likeliest first."""
    results = await client.classify(body.texts, model=body.model, truncate=body.truncate)
    return {"results": [[{"label": item.label, "score": item.score} for item in result.labels] for result in results]}


@app.post("/search")
async def search(body: Query, request: Request, client: ClientNow) -> dict[str, Any]:
    """The texts of the index that are nearest to a text."""
    index: Index | None = request.app.state.index
    if index is None:
        raise HTTPException(404, "this service has no index; start it with BERTLINE_INDEX")
    try:
        vectors = await client.embed([body.text], normalize=True, truncate=True, **index.model)
    except ModelNotFound as error:
        raise HTTPException(503, f"the index must be made anew: {error}") from error
    return {"results": [{"score": score, "text": text} for score, text in index.search(vectors[0], body.top_k)]}


@app.get("/health")
async def health(client: ClientNow) -> dict[str, Any]:
    """200 with the models that answer; 503 when the server is not there."""
    models = await client.models(timeout=3)
    return {"models": [f"{model.name}/{model.version}" for model in models if model.state in ("ready", "stale")]}
