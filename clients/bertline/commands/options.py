"""Options that the commands have in common, and what they mean: which rows, which server, which output."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from bertline._inputs import MAX_COUNT
from bertline.commands.access import access, connect
from bertline.jobs.operations import Operation
from bertline.jobs.progress import Progress
from bertline.jobs.read.rows import Selection
from bertline.jobs.read.sources import STANDARD_INPUT, Format, Given, Source, source_of
from bertline.jobs.run import run, run_on_ray
from bertline.jobs.spec import Order
from bertline.jobs.storage import find_files

REJECTED = 3
"""Exit code when some rows could not be used."""

TARGET = "127.0.0.1:50051"
"""The server that is asked unless another is named."""
Target = Annotated[str, typer.Option("--target", "-t", envvar="BERTLINE_TARGET", help="The server, host:port.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds that each request may take.")]
ModelName = Annotated[
    str, typer.Option("--model", "-m", help="NAME or NAME/VERSION. Default: the only one loaded.", show_default=False)
]
TopK = Annotated[int, typer.Option(min=1, max=MAX_COUNT, help="Most of them for each input.")]


class OutputFormat(StrEnum):
    """Of parts."""

    parquet = "parquet"
    jsonl = "jsonl"
    npy = "npy"


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
    keep: Annotated[list[str] | None, typer.Option(help="A column to keep beside the results. Default: all.")] = None
    drop: Annotated[
        list[str] | None, typer.Option(help="A column to leave out, as a long text that is not needed again.")
    ] = None
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", help="File or URL: .parquet, .jsonl or .npy; with / at its end a folder of parts."
        ),
    ] = None
    output_format: Annotated[
        OutputFormat | None, typer.Option(help="Of the parts, where the output is a folder. Default: parquet.")
    ] = None
    rejects: Annotated[
        str | None,
        typer.Option(
            help="Where to tell of rows that cannot be used. Default: OUTPUT.rejects.jsonl, of a folder "
            "_rejects.jsonl in it."
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace an output, or a file that --rejects names, that exists.")
    ] = False
    restart: Annotated[bool, typer.Option("--restart", help="Do not go on with an unfinished run, but begin anew.")] = (
        False
    )
    target: Target = TARGET
    engine: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Serve this folder of models for the job, instead of asking a server."),
    ] = None
    model: ModelName = ""
    timeout: Timeout = 30.0
    truncate: Annotated[
        bool | None,
        typer.Option(help="Cut what is too long, or reject it. Default: as the model was evaluated."),
    ] = None
    batch_size: Annotated[int, typer.Option(min=1, help="Most rows in one request.")] = 64
    in_flight: Annotated[int, typer.Option(min=1, max=1024, help="Requests that are under way at one time.")] = 8
    patience: Annotated[float, typer.Option(min=0, help="Seconds that a server may be out of reach, or too busy.")] = (
        60.0
    )
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Do it on a Ray cluster, a file at a time: `auto`, `local` or host:port."),
    ] = None
    ray_workers: Annotated[int, typer.Option(min=1, help="With --ray: files that are under way at one time.")] = 2

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
        try:
            order = self._order(operation, given, options, dtype)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        begin: dict[str, Any] = {"force": self.force, "restart": self.restart}
        with self._progress() as progress:
            if self.ray:
                cluster: dict[str, Any] = {"address": self.ray, "num_workers": self.ray_workers}
                num_rejected = run_on_ray(order, progress, **cluster, **begin)
            else:
                num_rejected = run(order, progress, **begin)
        self._tell(order, progress, num_rejected)

    def _order(
        self, operation: Operation, given: list[dict[str, Any]] | None, options: Mapping[str, Any], dtype: str
    ) -> Order:
        name, _, version = self.model.partition("/")
        if self.output == "":
            raise typer.BadParameter("--output is empty; name a file, or leave it out to write to standard output")
        if self.ray and not (self.output and self.inputs and "-" not in self.inputs):
            raise typer.BadParameter("--ray takes files, and writes to --output")
        with connect(TARGET if self.engine else self.target, self.timeout):
            pass  # what is wrong with these options is told before files are read
        return Order(
            method=operation.method,
            options={**options, "truncate": self.truncate},
            sources=self._sources(operation, given),
            names=self._names(operation),
            selection=Selection(self.keep or (), self.drop or ()),
            output=self.output,
            output_format=self.output_format,
            rejects=self.rejects,
            dtype=dtype,
            target=self.target,
            engine=self.engine,
            access=access(),
            model_name=name,
            model_version=version,
            timeout_s=self.timeout,
            batch_size=self.batch_size,
            num_in_flight=self.in_flight,
            patience_s=self.patience,
        )

    def _tell(self, order: Order, progress: Progress, num_rejected: int) -> None:
        if order.output and sys.stderr.isatty():
            print(f"bertline: {progress.rates()}", file=sys.stderr)
        if progress.num_cut and self.truncate is None:
            print(
                f"bertline: {progress.num_cut:,} of the {progress.num_rows:,} rows of this run cut to what the model "
                "reads, as when it was evaluated; --truncate takes that, --no-truncate rejects such rows",
                file=sys.stderr,
            )
        if num_rejected:
            if told := order.rejects_file():
                rows = "rows were" if num_rejected > 1 else "row was"
                print(f"bertline: {num_rejected:,} {rows} rejected; `{told.url}` tells why", file=sys.stderr)
            raise typer.Exit(REJECTED)

    def _sources(self, operation: Operation, given: list[dict[str, Any]] | None) -> list[Source | Given]:
        if bool(given) == bool(self.inputs):
            raise typer.BadParameter(
                "give either the input itself or --input FILE (`-` is standard input; a pattern stands in quotes)"
            )
        if given:
            return [Given(given)]
        if (self.inputs or ()).count("-") > 1:
            raise typer.BadParameter("standard input can be read once only: `-i -`")
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
            if not column or name in names:
                raise typer.BadParameter(f"--column names one column for `{name}`, once: `{item}`")
            names[name] = column
        return names

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
        if values["output"] == "-":
            values["output"] = None
        options = JobOptions(**{item.name: values.pop(item.name) for item in fields(JobOptions)})
        command(options, **values)

    run.__signature__ = inspect.Signature([*mine, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {item.name: item.annotation for item in [*mine, *shared]}
    del run.__wrapped__  # type: ignore[attr-defined]
    return run
