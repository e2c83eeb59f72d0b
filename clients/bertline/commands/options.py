"""Options that the commands have in common, and what they mean: which rows, which server, which output."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import grpc
import typer

from bertline._models import model_of_task
from bertline.client import Client
from bertline.errors import ModelNotFound
from bertline.jobs.asking import Asker
from bertline.jobs.kept import Kept
from bertline.jobs.operations import VECTOR, Operation
from bertline.jobs.parts import Parts, rejects_of
from bertline.jobs.progress import Progress
from bertline.jobs.run import Job, bound, run_to_parts, run_to_stream
from bertline.jobs.sinks import Jsonl, Npy, Parquet, Sink, sink_suffix
from bertline.jobs.sources import STANDARD_INPUT, Format, Given, Source, source_of
from bertline.jobs.storage import file_of, find_files
from bertline.results import Model

REJECTED = 3
"""Exit code when some rows could not be used."""

Target = Annotated[str, typer.Option("--target", "-t", envvar="BERTLINE_TARGET", help="The server, host:port.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds that each request may take.")]
TARGET = "127.0.0.1:50051"
"""The server that is asked unless another is named."""
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="NAME or NAME/VERSION. Default: the only one loaded.", show_default=False)
]
TopK = Annotated[int, typer.Option(min=1, help="Most of them for each input.")]


@dataclass(frozen=True)
class Access:
    """What a server may ask for."""

    token: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def credentials(self) -> grpc.ChannelCredentials | None:
        """Of TLS; None without it."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise typer.BadParameter("--tls-cert and --tls-key need each other")
        if self.tls_cert and not self.tls_ca:
            raise typer.BadParameter("--tls-cert needs --tls-ca")
        if not self.tls_ca:
            return None
        return grpc.ssl_channel_credentials(*map(_read, (self.tls_ca, self.tls_key, self.tls_cert)))


_access = Access()


def set_access(token: str | None, tls_ca: str | None, tls_cert: str | None, tls_key: str | None) -> None:
    """What servers ask for, from now on."""
    global _access
    _access = Access(token, tls_ca, tls_cert, tls_key)


def access() -> Access:
    """What servers ask for."""
    return _access


@contextmanager
def connect(target: str, timeout: float, **options: Any) -> Iterator[Client]:
    """A client; wrong values are the fault of the command line."""
    try:
        client = Client(target, timeout=timeout, credentials=_access.credentials(), token=_access.token, **options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with client:
        yield client


@dataclass(frozen=True)
class JobOptions:
    """The options of every command that asks about rows."""

    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", help="A file or URL, or a pattern of them in quotes; `-` is standard input."),
    ] = None
    format: Annotated[Format | None, typer.Option(help="Of the input. Default: what its name says, else text.")] = None
    skip_empty: Annotated[
        bool, typer.Option("--skip-empty", help="Leave empty lines out instead of rejecting them.")
    ] = False
    column: Annotated[
        list[str] | None, typer.Option(metavar="NAME=COLUMN", help="Read what the command calls NAME from that column.")
    ] = None
    keep: Annotated[
        list[str] | None, typer.Option(help="A column to keep beside the results. Default: all that are not read.")
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="File or URL: .parquet, .jsonl or .npy; with / at its end a folder of parts."
        ),
    ] = None
    output_format: Annotated[str, typer.Option(help="Of the parts, where the output is a folder.")] = "parquet"
    rejects: Annotated[
        str | None, typer.Option(help="Where to tell of rows that cannot be used. Default: OUTPUT.rejects.jsonl.")
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an output that exists.")] = False
    restart: Annotated[bool, typer.Option("--restart", help="Do not go on with an unfinished run, but begin anew.")] = (
        False
    )
    target: Target = TARGET
    model: ModelName = ""
    timeout: Timeout = 30.0
    truncate: Annotated[bool, typer.Option("--truncate", help="Cut what is too long instead of rejecting it.")] = False
    batch_size: Annotated[int, typer.Option(min=1, help="Most rows in one request.")] = 64
    in_flight: Annotated[int, typer.Option(min=1, help="Requests that are under way at one time.")] = 8
    patience: Annotated[float, typer.Option(min=0, help="Seconds that a server may be out of reach, or too busy.")] = (
        60.0
    )

    def run(
        self,
        operation: Operation,
        given: list[dict[str, Any]] | None,
        options: Mapping[str, Any],
        *,
        dtype: str = "float32",
    ) -> None:
        """Ask about every row, and write the results.

        Args:
            given: rows of the command line, instead of files.
            options: of the client's method.
            dtype: of vectors in Parquet and .npy.
        """
        sources = self._sources(operation, given)
        with connect(self.target, self.timeout, batch_size=self.batch_size) as client, self._progress() as progress:
            model = self._pinned(client, operation)
            known = {"model": model.name, "version": model.version} if model else self._model
            ask = bound(getattr(client, operation.method), **known, truncate=self.truncate, **options)
            asker = Asker(ask, self.batch_size, self.in_flight, self.patience, progress.wait)
            job = Job(operation, self._names(operation), sources, asker, progress)
            about = self._about(operation, sources, options, dtype, model)
            self._run(job, about, model, dtype, int(options.get("dimensions") or 0))

    def _run(self, job: Job, about: Mapping[str, Any], model: Model | None, dtype: str, dimensions: int) -> None:
        kept = Kept(
            self.keep or (), job.wanted, [VECTOR] if job.operation.method == "embed" else list(job.operation.types)
        )
        rejects = file_of(self.rejects) if self.rejects else None
        if self.output is None:
            num_rejected = run_to_stream(job, Jsonl(job.operation, kept), rejects)
            told = rejects
        else:
            output = file_of(self.output)
            dim = dimensions or (model.dim if model else 0)
            sink = self._sink(job.operation, kept, dim, dtype)
            told = rejects or rejects_of(output)
            parts = Parts(output, self.output.endswith("/"), sink, about, told)
            with parts.opened(force=self.force, restart=self.restart) as has_work:
                if has_work:
                    run_to_parts(job, parts)
            num_rejected = parts.num_rejected
            if sys.stderr.isatty():
                print(f"bertline: {job.progress.rates()}", file=sys.stderr)
        if num_rejected:
            if told:
                plural = "rows were" if num_rejected > 1 else "row was"
                print(f"bertline: {num_rejected} {plural} rejected; `{told.url}` tells why", file=sys.stderr)
            raise typer.Exit(REJECTED)

    def _sources(self, operation: Operation, given: list[dict[str, Any]] | None) -> list[Source | Given]:
        if bool(given) == bool(self.inputs):
            raise typer.BadParameter("give either the input itself or --input FILE (`-` is standard input)")
        if given:
            return [Given(given)]
        plain = Format.jsonl if operation.needed.keys() != {"text"} else None  # a text a line would not do
        sources: list[Source | Given] = []
        for pattern in self.inputs or ():
            files = [STANDARD_INPUT] if pattern == "-" else find_files([pattern])
            sources += [source_of(file, self.format, self.skip_empty, plain) for file in files]
        return sources

    def _names(self, operation: Operation) -> dict[str, str]:
        names = {}
        for item in self.column or ():
            name, sign, column = item.partition("=")
            if not sign or name not in {**operation.needed, **operation.optional}:
                known = ", ".join({**operation.needed, **operation.optional})
                raise typer.BadParameter(f"--column is NAME=COLUMN, where NAME is one of {known}: `{item}`")
            names[name] = column
        return names

    @property
    def _model(self) -> dict[str, str]:
        name, _, version = self.model.partition("/")
        return {"model": name, "version": version}

    def _pinned(self, client: Client, operation: Operation) -> Model | None:
        """The version that answers now, so that no other one answers later rows; None where the server chooses."""
        try:
            return model_of_task(client.models(), operation.task, *self._model.values())
        except ModelNotFound:
            return None

    def _about(
        self,
        operation: Operation,
        sources: Sequence[Source | Given],
        options: Mapping[str, Any],
        dtype: str,
        model: Model | None,
    ) -> dict[str, Any]:
        """What makes the output what it is."""
        return {
            "command": operation.method,
            "options": dict(options) | {"truncate": self.truncate, "dtype": dtype},
            "columns": self._names(operation),
            "keep": self.keep,
            "skip_empty": self.skip_empty,
            "inputs": [source.file.url if isinstance(source, Source) else "command line" for source in sources],
            "model": f"{model.name}/{model.version}" if model else self.model,
            "digest": model.digest if model else "",
        }

    def _sink(self, operation: Operation, kept: Kept, dim: int, dtype: str) -> Sink:
        assert self.output
        name = f"part.{self.output_format}" if self.output.endswith("/") else self.output
        kind = sink_suffix(name)
        if kind == ".jsonl":
            return Jsonl(operation, kept)
        if kind == ".npy" and operation.method != "embed":
            raise typer.BadParameter(".npy holds vectors only: write .parquet or .jsonl")
        return Npy(dim, dtype) if kind == ".npy" else Parquet(operation, kept, dim, dtype)

    def _progress(self) -> Progress:
        """Shown where a person sees it, and no results stand in between."""
        is_clear = bool(self.output or not sys.stdout or not sys.stdout.isatty())
        return Progress(shown=bool(self.inputs) and sys.stderr.isatty() and is_clear)


def asks(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of JobOptions beside its own; its first parameter gets them."""
    hints, own = get_type_hints(JobOptions, include_extras=True), inspect.signature(command)
    own_hints = get_type_hints(command, include_extras=True)
    shared = [
        inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=item.default, annotation=hints[item.name])
        for item in fields(JobOptions)
    ]
    mine = [item.replace(annotation=own_hints[item.name]) for item in list(own.parameters.values())[1:]]

    @wraps(command)
    def run(**values: Any) -> None:
        options = JobOptions(**{item.name: values.pop(item.name) for item in fields(JobOptions)})
        command(options, **values)

    run.__signature__ = inspect.Signature([*mine, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in [*mine, *shared]}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None
