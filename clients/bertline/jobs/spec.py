"""A job as it was asked for: all that another process needs to do a part of it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import ModelNotFound
from bertline.jobs.directory import Changed, Parts
from bertline.jobs.engine import engine
from bertline.jobs.layout import refuse_clashes, rejects_of
from bertline.jobs.operations import OPERATIONS, VECTOR, Operation
from bertline.jobs.pass_through import FILE, ROW_NUMBER, Kept
from bertline.jobs.progress import Progress
from bertline.jobs.read.rows import Selection
from bertline.jobs.read.sources import Given, Source
from bertline.jobs.send import Asker, Job
from bertline.jobs.storage import File, absolute, file_of
from bertline.jobs.write import Jsonl, Npy, Parquet, Sink, sink_suffix
from bertline.results import Model


@dataclass(frozen=True)
class Access:
    """What a server may ask for."""

    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of TLS; None without it."""
        if self.tls_ca is None:
            return None
        return grpc.ssl_channel_credentials(*map(_read, (self.tls_ca, self.tls_key, self.tls_cert)))


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to ask about which rows, and where to write. Can be pickled.

    Raises:
        ValueError: when the output's format is not known, or cannot hold the results.
    """

    method: str
    """Of the client."""
    options: Mapping[str, Any]
    """Of the method."""
    sources: Sequence[Source | Given]
    names: Mapping[str, str]
    """Under which name a row has a column of the operation, where it is another."""
    selection: Selection
    """The columns of the input that stand in the output."""
    output: str | None
    """Path or URL, with / at its end for a folder; None for standard output."""
    output_format: str | None
    """Of a folder's parts; None for Parquet."""
    rejects: str | None
    dtype: str
    """Of vectors in Parquet and .npy."""
    target: str
    engine: str | None
    """Folder of models that is served for the job, instead of asking `target`."""
    access: Access
    model_name: str
    model_version: str
    timeout_s: float
    batch_size: int
    num_in_flight: int
    patience_s: float
    model: Model | None = None
    """The version that answers from the start to the end; None where the server chooses."""

    def __post_init__(self) -> None:
        if self.output_format and not (self.output or "").endswith("/"):
            raise ValueError("--output-format is for a folder of parts: end --output with /")
        if self.output and self._suffix() == ".npy" and self.method != "embed":
            raise ValueError(".npy holds vectors only: write .parquet or .jsonl")

    @property
    def operation(self) -> Operation:
        """What it is that is asked."""
        return OPERATIONS[self.method]

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """A client of the server, or of one that is started here for it."""
        with engine(self.engine) if self.engine else _no_engine(self.target) as target:
            access = Access() if self.engine else self.access
            options = {
                "timeout": self.timeout_s,
                "batch_size": self.batch_size,
                "token": access.token,
                "priority": "bulk",
            }
            with Client(target, credentials=access.credentials(), **options) as client:  # type: ignore[arg-type]
                yield client

    def refuse_clashes(self) -> None:
        """Raise a FileError when the output, or the file of rejected rows, would replace something that is needed."""
        inputs = [source.file for source in self.sources if isinstance(source, Source) and source.is_file]
        refuse_clashes(inputs, file_of(self.output) if self.output else None, self.rejects_file())

    def for_workers(self) -> Order:
        """The same for processes in other folders, which cannot go by paths that begin in this one."""
        access = replace(self.access, **_whole_paths(self.access, "tls_ca", "tls_cert", "tls_key"))
        return replace(self, access=access, **_whole_paths(self, "output", "rejects", "engine"))

    def pinned(self, client: Client, progress: Progress) -> Order:
        """The same, of the version that answers now, so that no other one answers later rows. One that is being loaded
        is waited for; where none does the task, or several do, the server tells of it to who asks."""
        models = client.models()
        model = self._model_of(models)
        meant = [
            item for item in models if self.model_name in ("", item.name) and self.model_version in ("", item.version)
        ]
        is_ambiguous = not model and any(item.task == self.operation.task for item in meant)
        loading = next((item for item in meant if item.state == "loading"), None)  # until then nobody knows its task
        if not model and loading and not is_ambiguous:
            with suppress(ModelNotFound):  # it could not be loaded
                self._asker(client, progress).patiently(lambda: client.model(loading.name, loading.version))
            model = self._model_of(client.models())
        return replace(self, model=model, model_name=model.name, model_version=model.version) if model else self

    def _model_of(self, models: Sequence[Model]) -> Model | None:
        """The one that answers."""
        try:
            return model_of_task(models, self.operation.task, self.model_name, self.model_version)
        except ModelNotFound:
            return None

    def refuse_replaced(self, client: Client, progress: Progress) -> None:
        """Raise Changed when the version of the model is another by now than that of the start."""
        if not self.model:
            return
        asker = self._asker(client, progress)
        model = asker.patiently(lambda: client.model(self.model_name, self.model_version))
        if (model.digest, model.manifest_json) != (self.model.digest, self.model.manifest_json):
            name = f"{self.model_name}/{self.model_version}"
            hint = "begin anew with --restart" if self.output else "run the same again"
            raise Changed(f"the model `{name}` was replaced while the job ran; {hint}")

    def job(self, client: Client, progress: Progress) -> Job:
        """What is done with a client."""
        return Job(self.operation, self.names, self.sources, self._asker(client, progress), progress, self.selection)

    def parts(self) -> Parts:
        """Where the results go, of a job with an output."""
        assert self.output
        output = file_of(self.output)
        return Parts(output, self.output.endswith("/"), self._sink(), self._about(), self.rejects_file() or output)

    def stream(self) -> Jsonl:
        """How results are written, of a job without one."""
        return Jsonl(self.operation, self._kept())

    def rejects_file(self) -> File | None:
        """Where rows are told that cannot be used; None for on standard error."""
        if self.rejects:
            return file_of(self.rejects)
        return rejects_of(file_of(self.output)) if self.output else None

    def _asker(self, client: Client, progress: Progress) -> Asker:
        method = getattr(client, self.method)
        options = {**self.options, "model": self.model_name, "version": self.model_version}
        return Asker(
            lambda inputs, usage: method(inputs, usage=usage, **options),
            self.batch_size,
            self.num_in_flight,
            self.patience_s,
            progress.wait,
        )

    def _kept(self) -> Kept:
        results = [VECTOR] if self.method == "embed" else list(self.operation.types)
        places = [] if isinstance(self.sources[0], Given) else [ROW_NUMBER, *([FILE] if len(self.sources) > 1 else [])]
        return Kept(self.selection, results, self.selection.without_dropped(places))

    def _suffix(self) -> str:
        assert self.output
        return f".{self.output_format or 'parquet'}" if self.output.endswith("/") else sink_suffix(self.output)

    def _sink(self) -> Sink:
        suffix = self._suffix()
        if suffix == ".jsonl":
            return self.stream()
        dim = int(self.options.get("dimensions") or (self.model.dim if self.model else 0))
        if suffix == ".parquet":
            return Parquet(self.operation, self._kept(), dim, self.dtype)
        return Npy(dim, self.dtype)

    def _about(self) -> dict[str, Any]:
        """What makes the output what it is."""
        return {
            "command": self.method,
            "options": {**self.options, "dtype": self.dtype, "output_format": self._suffix()},
            "columns": dict(self.names),
            "keep": list(self.selection.keep),
            "drop": list(self.selection.drop),
            "inputs": [source.name.strip("`") for source in self.sources],
            "format": sorted({source.how for source in self.sources}),
            "model": f"{self.model_name}/{self.model_version}",
            "digest": self.model.digest if self.model else "",
            "manifest": hashlib.sha256(self.model.manifest_json.encode()).hexdigest() if self.model else "",
        }


def _whole_paths(item: Access | Order, *names: str) -> dict[str, Any]:
    return {name: absolute(path) for name in names if (path := getattr(item, name))}


@contextmanager
def _no_engine(target: str) -> Iterator[str]:
    yield target


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None
