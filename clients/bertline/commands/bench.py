"""Command `bertline bench`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import rich.console
import typer

from bertline.bench import run
from bertline.bench.settings import BenchSettings, read_numbers
from bertline.bench.view import BenchProgress, print_report
from bertline.commands.credentials import credentials
from bertline.commands.options import TARGET, Target, Timeout, model_option
from bertline.jobs.sources import Format
from bertline.jobs.write import json_line, standard_output


class PriorityName(StrEnum):
    """Values of `Priority`, as an enum for typer."""

    interactive = "interactive"
    bulk = "bulk"


class ArrivalsName(StrEnum):
    """Values of `Arrivals`, as an enum for typer."""

    poisson = "poisson"
    constant = "constant"


def bench(
    target: Target = TARGET,
    model: Annotated[str, model_option("the only loaded model, of any task")] = "",
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N[,N...]", help="Number of concurrent calls; one run for each number. Default: 8."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R[,R...]", help="Calls a second; one run for each number. Replaces --concurrency."),
    ] = None,
    arrivals: Annotated[
        ArrivalsName, typer.Option(help="Gaps between calls, with --rate: random (poisson) or even (constant).")
    ] = ArrivalsName.poisson,
    max_in_flight: Annotated[
        int,
        typer.Option(help="Maximum number of concurrent calls, with --rate. Later calls wait; their wait counts."),
    ] = 1000,
    duration: Annotated[float | None, typer.Option(help="Length of each run, in seconds. Default: 10.")] = None,
    requests: Annotated[int | None, typer.Option(help="Number of calls of each run. Replaces --duration.")] = None,
    warm_up: Annotated[float, typer.Option(help="Time before each run that is not measured, in seconds.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Number of texts in each call.")] = 1,
    input_path: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", help="File of texts or rows, pattern in quotes, or `-`. Default: built-in sentences."
        ),
    ] = None,
    input_format: Annotated[
        Format | None, typer.Option("--format", help="Format of the input. Default: by the suffix of the file.")
    ] = None,
    timeout: Timeout = 30.0,
    channels: Annotated[int, typer.Option(help="Number of connections, used in turn.")] = 1,
    priority: Annotated[
        PriorityName, typer.Option(help="Priority of the calls: a busy server computes interactive calls first.")
    ] = PriorityName.bulk,
    truncate: Annotated[
        bool, typer.Option(help="Truncate inputs that are too long, or let the server refuse them.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Seed of the random gaps.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as one JSON object.")] = False,
    allow_failures: Annotated[
        bool, typer.Option("--allow-failures", help="Exit with code 0 even if calls failed.")
    ] = False,
) -> None:
    """Measure throughput and latency of a server under load."""
    name, _, version = model.partition("/")
    try:
        settings = BenchSettings(
            target=target,
            credentials=credentials().for_channel(),
            token=credentials().token,
            model=name,
            version=version,
            concurrency=read_numbers("--concurrency", concurrency, int) if concurrency else (),
            rate=read_numbers("--rate", rate, float) if rate else (),
            arrivals=arrivals.value,
            max_in_flight=max_in_flight,
            duration_s=duration,
            num_requests=requests,
            warm_up_s=warm_up,
            batch_size=batch_size,
            input_path=input_path,
            format=input_format,
            timeout_s=timeout,
            channels=channels,
            priority=priority.value,
            truncate=truncate,
            seed=seed,
        )
        with BenchProgress(rich.console.Console(stderr=True)) as progress:
            report = run.bench(settings, progress)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with standard_output() as stream:
        if as_json:
            stream.write(json_line(report.to_dict()))
        else:
            print_report(report, rich.console.Console())
    raise typer.Exit(report.exit_code(allow_failures=allow_failures))
