"""Job spec: the options of a job, which another process needs to do a part of it. Can be pickled."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from bertline._inputs import check_space
from bertline.client import Client
from bertline.jobs.directory import JobDirectory, job_directory_of, rejects_of
from bertline.jobs.engine import engine
from bertline.jobs.rows import Chunk, Selection
from bertline.jobs.sources import CommandLineRows, Source, chunks_of
from bertline.jobs.storage import File, FileError, absolute, file_of, is_in
from bertline.jobs.write import FILE, REASON, ROW_NUMBER, JsonlWriter, NpyWriter, PassThrough, Writer
from bertline.operations import OPERATIONS
from bertline.operations.base import Operation
from bertline.results import Model

LAYOUT = 1
"""Version of how rows are divided into parts and named; another one does not resume the job."""


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
        paths = (self.tls_ca, self.tls_key, self.tls_cert)
        return grpc.ssl_channel_credentials(*(Path(path).read_bytes() if path else None for path in paths))


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
    keep_rejected: bool
    """True to keep rejected rows in the output, with the reason instead of a result."""
    output: str | None
    """Path or URL; ends with / for a folder of parts; None for standard output."""
    output_format: str | None
    """Format of the parts in a folder; None for Parquet."""
    rejects: str | None
    """File for rejected rows; None for the default path next to the output."""
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
    space: str | None = None
    """Space that vectors must have; None for any."""

    def __post_init__(self) -> None:
        check_space(self.space)
        is_folder = (self.output or "").endswith("/")
        if self.output_format and not is_folder:
            raise ValueError("--output-format is for a folder of parts: end --output with /")
        if self.output and self.suffix == ".npy" and self.method != "embed":
            raise ValueError(".npy holds vectors only: write .parquet or .jsonl")

    @property
    def operation(self) -> Operation:
        """Operation that the job does on each row."""
        return OPERATIONS[self.method]

    @property
    def result_types(self) -> dict[str, Any]:
        """Types of the results, see `Operation.types`, perhaps with REASON."""
        is_multi_label = self.options.get("multi_label", self.model is not None and self.model.multi_label)
        types = {name: kind for name, kind in self.operation.types.items() if is_multi_label or name != "selected"}
        return {**types, REASON: str} if self.keep_rejected else types

    @property
    def suffix(self) -> str:
        """Suffix of the output format: `.parquet`, `.jsonl` or `.npy`."""
        if (self.output or "").endswith("/"):
            return f".{self.output_format or 'parquet'}"
        suffix = os.path.splitext((self.output or "").lower())[1]
        found = {"": ".jsonl", ".ndjson": ".jsonl"}.get(suffix, suffix)
        if found not in (".parquet", ".jsonl", ".npy"):
            raise ValueError(
                f"unknown output format: `{self.output}`; use a name that ends in .parquet, .jsonl or .npy"
            )
        return found

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

    def chunks(self, number: int, max_rows: int | None = None) -> Iterator[Chunk]:
        """Read the chunks of one source, see `chunks_of`."""
        operation, names = self.operation, self.column_names
        required = [names.get(name, name) for name in operation.needed]
        named = [names[name] for name in operation.optional if name in names]
        selected = [name for name in (*self.selection.keep, *self.selection.drop) if name not in (ROW_NUMBER, FILE)]
        needed = [*required, *named, *selected]
        return chunks_of(self.sources[number], number, operation.columns(names), needed, self.selection, max_rows)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """Connect to the server; with `engine`, start one first and stop it afterwards.

        Each batch of the job is a call, several of which are in flight, so the client sends the requests of a call one
        after the other. Only a job that is a single batch leaves their number to the client.
        """
        with engine(self.engine) if self.engine else nullcontext(self.target) as target:
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
                space=self.space,
            ) as client:
                yield client

    def for_workers(self) -> JobSpec:
        """Return the same spec with absolute paths, for processes that run in other folders."""

        def paths(item: Any, *names: str) -> dict[str, Any]:
            return {name: absolute(path) for name in names if (path := getattr(item, name))}

        credentials = replace(self.credentials, **paths(self.credentials, "tls_ca", "tls_cert", "tls_key"))
        return replace(self, credentials=credentials, **paths(self, "output", "rejects", "engine"))

    def with_model(self, model: Model | None) -> JobSpec:
        """Return the same spec with this model version; unchanged for None."""
        return replace(self, model=model, model_name=model.name, model_version=model.version) if model else self

    # ---- the output

    def identity(self) -> dict[str, Any]:
        """Return everything that the output depends on, as stored in `_job.json`. Only a run with the same identity may
        resume the job."""
        space = {"space": self.model.space} if self.model and self.model.space else {}
        return {
            **space,
            "layout": LAYOUT,
            "command": self.method,
            "options": {**self.options, "dtype": self.dtype, "output_format": self.suffix},
            "columns": dict(self.column_names),
            "keep": list(self.selection.keep),
            "drop": list(self.selection.drop),
            "keep_rejected": self.keep_rejected,
            "inputs": [source.name.strip("`") for source in self.sources],
            "format": sorted({source.format_key for source in self.sources}),
            "model": f"{self.model_name}/{self.model_version}",
            "digest": self.model.digest if self.model else "",
            "manifest": hashlib.sha256(self.model.manifest_json.encode()).hexdigest() if self.model else "",
        }

    def pass_through(self) -> PassThrough:
        """Return the pass-through columns."""
        positions = [ROW_NUMBER, *([FILE] if len(self.sources) > 1 else [])]
        if isinstance(self.sources[0], CommandLineRows):
            positions = []
        positions = [name for name in positions if name not in self.selection.drop]
        return PassThrough(self.selection, list(self.result_types), positions)

    def writer(self) -> Writer:
        """Return the writer of the output format."""
        if self.suffix == ".jsonl":
            return JsonlWriter(self.operation, self.pass_through())
        dim = int(self.options.get("dimensions") or (self.model.dim if self.model else 0))
        dim = -(-dim // 8) if self.options.get("format") == "binary" else dim  # bytes for as many bits
        metadata = self.identity()
        inputs = metadata.pop("inputs")  # perhaps thousands: their number and a digest stand for them
        digest = hashlib.sha256(json.dumps(inputs).encode()).hexdigest()
        metadata |= {"num_inputs": len(inputs), "inputs_digest": digest}
        if self.suffix == ".npy":
            return NpyWriter(dim, self.dtype, metadata)
        from bertline.jobs.parquet import ParquetWriter

        types, is_typed = self.result_types, all(isinstance(item, Source) and item.has_types for item in self.sources)
        return ParquetWriter(self.operation, types, self.pass_through(), dim, self.dtype, metadata, is_typed=is_typed)

    def directory(self) -> JobDirectory:
        """Return the job directory of a spec with an output."""
        assert self.output
        assert self.rejects_file
        return JobDirectory(file_of(self.output), self.writer(), self.identity(), self.rejects_file)

    def refuse_conflicts(self) -> None:
        """Check that neither the output nor the rejected rows would replace an input, each other, or a special file.

        Raises:
            FileError: when they would, or the folder of a file given with --rejects does not exist.
        """
        output, rejects = file_of(self.output) if self.output else None, self.rejects_file
        inputs = [source.file for source in self.sources if isinstance(source, Source) and source.is_file]
        if output:
            if replaced := [file for file in inputs if is_in(file, output) or is_in(file, job_directory_of(output))]:
                raise FileError(f"the output would replace an input: `{replaced[0].url}`; choose another output")
            if not output.is_folder and output.is_special():
                hint = "end --output with / to write a folder of parts"
                raise FileError(f"not a regular file: `{output.url}`; {hint}")
        if not rejects:
            return
        hint = f"`{rejects.url}`; name another file with --rejects"
        if any(is_in(rejects, file) for file in inputs):
            raise FileError(f"the rejected rows would replace an input: {hint}")
        if rejects.is_folder or rejects.is_special():
            raise FileError(f"not a regular file: {hint}")
        if output and is_in(rejects, rejects_of(output)):
            return
        if output and (is_in(rejects, output) or is_in(rejects, job_directory_of(output))):
            raise FileError(f"--rejects lies in the output or its job directory: {hint}")
        if rejects.is_local and not os.path.isdir(os.path.dirname(rejects.path)):
            raise FileError(f"cannot write `{rejects.url}`: {os.strerror(errno.ENOENT)}")
