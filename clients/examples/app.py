"""HTTP service in front of a Bertline server: vectors, labels, and search in an index that search.py wrote.

pip install ./clients fastapi uvicorn
BERTLINE_INDEX=notes.db uvicorn app:app --app-dir clients/examples --port 8000
curl localhost:8000/embed -H 'content-type: application/json' -d '{"texts": ["A first text."]}'
curl localhost:8000/search -H 'content-type: application/json' -d '{"text": "Where do owls sleep?", "top_k": 3}'

BERTLINE_TARGET (default 127.0.0.1:50051) and BERTLINE_TOKEN name the server. BERTLINE_INDEX is optional.
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
from search import CANDIDATES, Index

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
"""HTTP status of each error. A final Overloaded is 413: trying again does not help. All other errors are
502: they concern this service or the server, not the caller."""


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open one client for the lifetime of the service. All requests share its connection."""
    file = os.environ.get("BERTLINE_INDEX")
    app.state.index = Index(Path(file)) if file else None
    target = os.environ.get("BERTLINE_TARGET") or "127.0.0.1:50051"
    async with AsyncClient(target, token=os.environ.get("BERTLINE_TOKEN") or None, timeout=10) as client:
        app.state.client = client
        yield


app = FastAPI(title="Bertline over HTTP", lifespan=lifespan)


def get_client(request: Request) -> AsyncClient:
    """Return the client of this service."""
    return request.app.state.client


ClientNow = Annotated[AsyncClient, Depends(get_client)]


class Texts(BaseModel):
    """Body of `/embed` and `/classify`."""

    texts: list[str] = Field(min_length=1, max_length=1024)
    model: str = ""
    truncate: bool = False


class Query(BaseModel):
    """Body of `/search`."""

    text: str
    top_k: int = Field(5, ge=1, le=CANDIDATES)


@app.exception_handler(BertlineError)
async def error_response(request: Request, error: BertlineError) -> JSONResponse:
    """Return the response for an error, with the invalid texts."""
    status = next((code for kind, code in STATUSES.items() if isinstance(error, kind)), 502)
    if isinstance(error, Overloaded) and error.is_final:
        status = 413
    content: dict[str, Any] = {"detail": "the model server failed" if status == 502 else str(error)}
    if isinstance(error, InvalidInput):
        content["items"] = [{"index": item.index, "reason": item.reason} for item in error.items]
    return JSONResponse(content, status, headers={"Retry-After": "1"} if status == 503 else None)


@app.post("/embed")
async def embed(body: Texts, client: ClientNow) -> dict[str, Any]:
    """Return one vector per text."""
    vectors = await client.embed(body.texts, model=body.model, truncate=body.truncate)
    return {"vectors": vectors.tolist()}


@app.post("/classify")
async def classify(body: Texts, client: ClientNow) -> dict[str, Any]:
    """Return labels with probabilities for each text, most likely first."""
    results = await client.classify(body.texts, model=body.model, truncate=body.truncate)
    return {"results": [[{"label": item.label, "score": item.score} for item in result.labels] for result in results]}


@app.post("/search")
async def search(body: Query, request: Request, client: ClientNow) -> dict[str, Any]:
    """Return the texts of the index that fit a text, by words and vectors and then by the model that ranks."""
    index: Index | None = request.app.state.index
    if index is None:
        raise HTTPException(404, "this service has no index; start it with BERTLINE_INDEX")
    try:
        vectors = await client.embed([body.text], normalize=True, truncate=True, **index.model)
    except ModelNotFound as error:
        raise HTTPException(503, f"the model of the index is not loaded; build the index again: {error}") from error
    found = [index.texts[row] for row in index.both(body.text, vectors[0], CANDIDATES)]
    (ranking,) = await client.rerank([(body.text, found)], top_n=body.top_k, truncate=True)
    return {"results": [{"score": item.score, "text": found[item.document]} for item in ranking.documents]}


@app.get("/health")
async def health(client: ClientNow) -> dict[str, Any]:
    """Return the loaded models; 503 if the server cannot be reached."""
    models = await client.models(timeout=3)
    return {"models": [f"{model.name}/{model.version}" for model in models if model.state in ("ready", "stale")]}
