"""Job spec: the options of a job, which another process needs to do a part of it. Can be pickled."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from bertline.client import Client
from bertline.jobs.engine import engine
from bertline.jobs.layout import rejects_of
from bertline.jobs.operations import OPERATIONS, Operation
from bertline.jobs.read.rows import Selection
from bertline.jobs.read.sources import CommandLineRows, Source
from bertline.jobs.storage import File, absolute, file_of
from bertline.jobs.write import format_of
from bertline.results import Model


@dataclass(frozen=True)
class Credentials:
    """Token and TLS files for servers that ask for them."""

    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def for_channel(self) -> grpc.ChannelCredentials | None:
        """Return gRPC's TLS credentials; None without TLS."""
        if self.tls_ca is None:
            return None
        return grpc.ssl_channel_credentials(*map(_read, (self.tls_ca, self.tls_key, self.tls_cert)))


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Input, operation, server and output of a job.

    Raises:
        ValueError: when the output's format is unknown, or cannot hold the results.
    """

    method: str
    """Name of the client's method."""
    options: Mapping[str, Any]
    """Keyword arguments of the method."""
    sources: Sequence[Source | CommandLineRows]
    column_names: Mapping[str, str]
    """Operation column -> input column, where the names differ."""
    selection: Selection
    """Input columns to copy into the output."""
    output: str | None
    """Path or URL; ends with / for a folder of parts; None for standard output."""
    output_format: str | None
    """Format of the parts in a folder; None for Parquet."""
    rejects: str | None
    """File for rejected rows; None for the default place beside the output."""
    dtype: str
    """Data type of the vectors in Parquet and .npy: `float32`, `float16`, `int8`, or `uint8` for binary ones."""
    target: str
    """Address of the server, host:port."""
    engine: str | None
    """Folder of models to serve for this job; replaces `target`."""
    credentials: Credentials
    model_name: str
    model_version: str
    timeout_s: float
    """Time limit of one request."""
    batch_size: int
    """Maximum number of rows in one request."""
    num_in_flight: int
    """Maximum number of concurrent requests."""
    patience_s: float
    """Retry limit while the server is unreachable or overloaded."""
    model: Model | None = None
    """Model version that the whole job uses; None while the server chooses."""

    def __post_init__(self) -> None:
        if self.output_format and not self.is_folder:
            raise ValueError("--output-format is for a folder of parts: end --output with /")
        if self.output and self.suffix == ".npy" and self.method != "embed":
            raise ValueError(".npy holds vectors only: write .parquet or .jsonl")

    @property
    def operation(self) -> Operation:
        """Operation that the job does on each row."""
        return OPERATIONS[self.method].for_job(self.model, self.options)

    @property
    def is_folder(self) -> bool:
        """True if the output is a folder of parts."""
        return (self.output or "").endswith("/")

    @property
    def suffix(self) -> str:
        """Suffix of the output format: `.parquet`, `.jsonl` or `.npy`."""
        if self.is_folder:
            return f".{self.output_format or 'parquet'}"
        return format_of(self.output or "")

    @property
    def input_files(self) -> list[File]:
        """Input files; standard input and rows of the command line are not files."""
        return [source.file for source in self.sources if isinstance(source, Source) and source.is_file]

    @property
    def output_file(self) -> File | None:
        """Output file or folder; None for standard output."""
        return file_of(self.output) if self.output else None

    @property
    def rejects_file(self) -> File | None:
        """File for rejected rows; None for standard error."""
        if self.rejects:
            return file_of(self.rejects)
        return rejects_of(file_of(self.output)) if self.output else None

    @property
    def fits_one_request(self) -> bool:
        """True if the rows come from the command line, go to standard output and fit in one request."""
        (source, *others) = self.sources
        is_small = isinstance(source, CommandLineRows) and len(source.rows) <= self.batch_size
        return is_small and not others and not self.output

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """Connect to the server; with `engine`, start one first and stop it afterwards.

        Each batch of the job is a call, several of which are in flight, so the client sends the requests of a call one
        after the other. Only a job that is a single batch leaves their number to the client.
        """
        with engine(self.engine) if self.engine else _no_engine(self.target) as target:
            credentials = Credentials() if self.engine else self.credentials
            with Client(
                target,
                timeout=self.timeout_s,
                batch_size=self.batch_size,
                num_in_flight=self.num_in_flight if self.fits_one_request else 1,
                coalesce=False,
                credentials=credentials.for_channel(),
                token=credentials.token,
                priority="bulk",
            ) as client:
                yield client

    def for_workers(self) -> JobSpec:
        """Return the same spec with absolute paths, for processes that run in other folders."""
        credentials = replace(self.credentials, **_absolute_paths(self.credentials, "tls_ca", "tls_cert", "tls_key"))
        return replace(self, credentials=credentials, **_absolute_paths(self, "output", "rejects", "engine"))

    def with_model(self, model: Model | None) -> JobSpec:
        """Return the same spec with this model version; unchanged for None."""
        return replace(self, model=model, model_name=model.name, model_version=model.version) if model else self

    def identity(self) -> dict[str, Any]:
        """Return everything that the output depends on, as stored in `_job.json`. Only a run with the same identity may
        resume the job."""
        return {
            "command": self.method,
            "options": {**self.options, "dtype": self.dtype, "output_format": self.suffix},
            "columns": dict(self.column_names),
            "keep": list(self.selection.keep),
            "drop": list(self.selection.drop),
            "inputs": [source.name.strip("`") for source in self.sources],
            "format": sorted({source.format_key for source in self.sources}),
            "model": f"{self.model_name}/{self.model_version}",
            "digest": self.model.digest if self.model else "",
            "manifest": hashlib.sha256(self.model.manifest_json.encode()).hexdigest() if self.model else "",
        }


def _absolute_paths(item: Credentials | JobSpec, *names: str) -> dict[str, Any]:
    return {name: absolute(path) for name in names if (path := getattr(item, name))}


@contextmanager
def _no_engine(target: str) -> Iterator[str]:
    yield target


def _read(path: str | None) -> bytes | None:
    return Path(path).read_bytes() if path else None
