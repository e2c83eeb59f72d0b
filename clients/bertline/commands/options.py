"""Options of the commands that process rows, and the job that they describe."""

from __future__ import annotations

import inspect
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Annotated, Any, Literal, get_type_hints

import typer

from bertline._inputs import MAX_COUNT
from bertline.commands.credentials import connect, credentials
from bertline.commands.filled_options import Command
from bertline.jobs.directory import Totals
from bertline.jobs.progress import Progress, ProgressBar, ProgressLines, duration
from bertline.jobs.rows import MAX_LINE_BYTES, Selection
from bertline.jobs.run import run
from bertline.jobs.sources import STANDARD_INPUT, CommandLineRows, Format, Source, partition_keys, source_of
from bertline.jobs.spec import JobSpec
from bertline.jobs.storage import FileError, file_of, find_files, is_in
from bertline.jobs.write import print_error
from bertline.operations.base import Operation

EXIT_REJECTED = 3
"""Exit code when some rows were rejected."""
SUMMARY_AFTER_S = 60.0
"""Run time after which a job without --output prints a summary, too."""

TARGET = "127.0.0.1:50051"
"""Default server."""
Target = Annotated[
    str,
    typer.Option(
        "--target", "-t", metavar="HOST:PORT", envvar="BERTLINE_TARGET", help="Address of the server, host:port."
    ),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Time limit of one request, in seconds.")]


def model_option(default: str) -> Any:
    """Return the option `--model`.

    Args:
        default: what is used without the option, for its help.
    """
    help = f"Model to use, NAME or NAME/VERSION. Default: {default}."
    return typer.Option("--model", "-m", metavar="NAME[/VERSION]", help=help, show_default=False)


ModelOfTask = Annotated[str, model_option("the default model of the task")]


def count_option(help: str) -> Any:
    """Return an option for a whole number of at least 1."""
    return typer.Option(metavar="N", min=1, max=MAX_COUNT, help=help)


TopK = Annotated[int, count_option("Maximum number of results for each input.")]


@dataclass(frozen=True)
class JobOptions:
    """Options of every command that processes rows."""

    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "-i",
            metavar="FILE",
            help="File, folder, URL, or pattern in quotes; `-` is standard input; repeatable.",
        ),
    ] = None
    format: Annotated[
        Format | None, typer.Option(help="Format of the input. Default: by the suffix of the file, else text.")
    ] = None
    skip_empty: Annotated[
        bool,
        typer.Option(
            "--skip-empty",
            help="Skip empty lines, and rows of CSV and TSV without any value, instead of rejecting them.",
        ),
    ] = False
    max_line_bytes: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=2**31,
            help="Maximum bytes of a line of the input, for CSV of a row. A job takes a few times as much memory.",
        ),
    ] = MAX_LINE_BYTES
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=COLUMN",
            help="Read NAME from the input column COLUMN, such as text=body. Also as --columns.NAME COLUMN.",
        ),
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="Input column to copy into the output; repeatable. Default: all."),
    ] = None
    drop: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN", help="Input column to leave out of the output, such as a long text; repeatable."
        ),
    ] = None
    keep_rejected: Annotated[
        bool,
        typer.Option(
            "--keep-rejected",
            help="Also write rejected rows to the output, in their places, with nulls and the column `reason`.",
        ),
    ] = False
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File or URL that ends in .parquet, .jsonl or .npy, or in / for a folder of parts. Default: JSONL on "
            "standard output.",
        ),
    ] = None
    output_format: Annotated[
        Literal["parquet", "jsonl", "npy"] | None,
        typer.Option(help="Format of the parts in an output folder. Default: parquet."),
    ] = None
    rejects: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="File for rejected rows, with reasons. Default: OUTPUT.rejects.jsonl, or _rejects.jsonl in an output "
            "folder.",
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output, and the file of --rejects, if they exist.")
    ] = False
    restart: Annotated[
        bool, typer.Option("--restart", help="Start again, and discard what an interrupted run has done.")
    ] = False
    target: Target = TARGET
    engine: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Serve this folder of models for the job. Replaces --target."),
    ] = None
    model: ModelOfTask = ""
    timeout: Timeout = 30.0
    truncate: Annotated[
        bool | None,
        typer.Option(help="Truncate inputs that are too long, or reject them. Default: as the model was evaluated."),
    ] = None
    batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum number of rows (rerank: documents) in a request.")
    ] = 64
    in_flight: Annotated[
        int,
        typer.Option(metavar="N", min=1, max=1024, help="Number of concurrent requests. Raise it for several servers."),
    ] = 8
    patience: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="How long to retry while the server is unreachable or overloaded, in seconds.",
        ),
    ] = 60.0
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run on a Ray cluster, one file a task: `auto`, `local` or host:port."),
    ] = None
    ray_workers: Annotated[
        int, typer.Option(metavar="N", min=1, help="Number of files at the same time, with --ray.")
    ] = 2

    def run(
        self,
        operation: Operation,
        rows: list[dict[str, Any]] | None,
        options: Mapping[str, Any],
        *,
        dtype: str = "float32",
        space: str | None = None,
    ) -> None:
        """Process all rows, and write the results.

        Args:
            rows: rows of the command line; None if the input are files.
            options: keyword arguments of the client's method.
            dtype: data type of vectors in Parquet and .npy.
            space: space that vectors must have; None for any.

        Raises:
            typer.Exit: when rows were rejected.
        """
        try:
            spec = replace(self._spec(operation, rows, options, dtype), space=space)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        with self._progress() as progress:
            totals = run(
                spec, progress, ray=self.ray, num_workers=self.ray_workers, force=self.force, restart=self.restart
            )
        self._report(spec, progress, totals)

    def _spec(
        self, operation: Operation, rows: list[dict[str, Any]] | None, options: Mapping[str, Any], dtype: str
    ) -> JobSpec:
        name, _, version = self.model.partition("/")
        if self.ray and not (self.output and self.inputs and "-" not in self.inputs):
            raise typer.BadParameter("--ray needs --input with files, and --output")
        with connect(TARGET if self.engine else self.target, self.timeout):
            pass  # check these options before files are read
        return JobSpec(
            method=operation.method,
            options={**options, "truncate": self.truncate},
            sources=self._sources(operation, rows),
            column_names=self._column_names(operation),
            selection=Selection(self.keep or (), self.drop or ()),
            keep_rejected=self.keep_rejected,
            output=self.output,
            output_format=self.output_format,
            rejects=self.rejects,
            dtype=dtype,
            target=self.target,
            engine=self.engine,
            credentials=credentials(),
            model_name=name,
            model_version=version,
            timeout_s=self.timeout,
            batch_size=self.batch_size,
            num_in_flight=self.in_flight,
            patience_s=self.patience,
        )

    def _sources(self, operation: Operation, rows: list[dict[str, Any]] | None) -> list[Source | CommandLineRows]:
        if bool(rows) == bool(self.inputs):
            raise typer.BadParameter(
                "give either texts or --input FILE (`-` is standard input; put a pattern in quotes)"
            )
        if rows:
            return [CommandLineRows(rows)]
        if (self.inputs or ()).count("-") > 1:
            raise typer.BadParameter("standard input can be read only once: `-i -`")
        default = Format.jsonl if operation.needed.keys() != {"text"} else None  # plain text has one column only
        patterns = self.inputs or []
        written = [file_of(name) for name in (self.output, self.rejects) if name]
        for folder in (file_of(name) for name in patterns if name != "-"):
            if folder.is_directory() and (lost := [file for file in written if is_in(file, folder)]):
                raise FileError(f"`{lost[0].url}` would lie in the input folder `{folder.url}`; choose another place")
        files = [file for name in patterns for file in ([STANDARD_INPUT] if name == "-" else find_files([name]))]
        options = (self.format, self.skip_empty, default, self.max_line_bytes)
        return [
            replace(source_of(file, *options), keys=keys)
            for file, keys in zip(files, partition_keys(files), strict=True)
        ]

    def _column_names(self, operation: Operation) -> dict[str, str]:
        names = {}
        known = {**operation.needed, **operation.optional}
        for item in self.column or ():
            name, _, column = item.partition("=")
            if not column or name not in known or name in names:
                raise typer.BadParameter(
                    f"--column is NAME=COLUMN, with NAME one of {', '.join(known)}, each once: `{item}`"
                )
            names[name] = column
        return names

    def _progress(self) -> Progress:
        """Show a bar on a terminal that no results are printed to, and lines in logs."""
        if not self.inputs:
            return Progress()
        if not sys.stderr.isatty():
            return ProgressLines()
        is_clear = bool(self.output or not sys.stdout or not sys.stdout.isatty())
        return ProgressBar() if is_clear else Progress()

    def _report(self, spec: JobSpec, progress: Progress, totals: Totals) -> None:
        """Print the summary, and what the user should know about truncated and rejected rows."""
        if self.inputs and (self.output or progress.seconds >= SUMMARY_AFTER_S):
            print_error(summary(progress, totals))
        if totals.num_truncated and self.truncate is None:
            print_error(
                f"{totals.num_truncated:,} of {totals.num_rows:,} rows were truncated to the model's maximum length, "
                "as in its evaluation; --truncate confirms this, --no-truncate rejects such rows"
            )
        if not totals.num_rejected:
            return
        if file := spec.rejects_file:
            rows = "rows were" if totals.num_rejected > 1 else "row was"
            print_error(f"{totals.num_rejected:,} {rows} rejected; see `{file.url}` for the reasons")
        raise typer.Exit(EXIT_REJECTED)


def summary(progress: Progress, totals: Totals) -> str:
    """Return the closing line of a job: counts of the whole job, time and speed of this run."""
    earlier = f" ({progress.num_skipped:,} in earlier runs)" if progress.num_skipped else ""
    rows = "row" if totals.num_rows == 1 else "rows"
    counts = [f"{totals.num_rows:,} {rows}{earlier}", f"{totals.num_rejected:,} rejected"]
    if totals.num_truncated:
        counts.append(f"{totals.num_truncated:,} truncated")
    rates = f" ({', '.join(progress.rates())})" if progress.num_rows else ""
    return f"{', '.join(counts)} in {duration(progress.seconds)}{rates}"


class JobCommand(Command):
    """Command that processes rows: accepts `--columns.NAME COLUMN`, and asks about texts that name a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        end = args.index("--") if "--" in args else len(args)
        num_literal = len(args[end + 1 :])
        rest: list[str] = super().parse_args(ctx, [*_with_column_options(args[:end]), *args[end:]])
        arguments = [ctx.params.get(item.name) for item in ctx.command.params if item.param_type_name == "argument"]
        texts = [text for value in arguments if value for text in ([value] if isinstance(value, str) else value)]
        if ctx.params.get("inputs"):
            texts = []
        for text in texts[: len(texts) - num_literal]:
            if os.path.isfile(text):
                name = shlex.quote(text)
                raise typer.BadParameter(
                    f"`{text}` is a file: did you mean -i {name}? To send the name as a text, write "
                    f"`{ctx.command_path} -- {name}`",
                    ctx=ctx,
                )
        return rest


def _with_column_options(args: list[str]) -> list[str]:
    """Replace `--columns.NAME COLUMN`, the spelling of training's commands, by `--column NAME=COLUMN`."""
    replaced, rest = list[str](), iter(args)
    for arg in rest:
        if not arg.startswith("--columns."):
            replaced.append(arg)
            continue
        name, sign, column = arg.removeprefix("--columns.").partition("=")
        replaced += ["--column", f"{name.replace('-', '_')}={column if sign else next(rest, '')}"]
    return replaced


def job_command(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of JobOptions to a command, whose first parameter gets them."""
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
