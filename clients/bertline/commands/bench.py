"""The command `bertline bench`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import rich.console
import typer

from bertline.bench import run
from bertline.bench.settings import BenchSettings, read_numbers
from bertline.bench.view import BenchProgress, print_report
from bertline.commands.access import access
from bertline.commands.options import TARGET, ModelName, Target, Timeout
from bertline.jobs.read.sources import Format
from bertline.jobs.write import json_line, standard_output


class PriorityName(StrEnum):
    """`Priority` as typer wants it."""

    interactive = "interactive"
    bulk = "bulk"


class ArrivalsName(StrEnum):
    """`Arrivals` as typer wants it."""

    poisson = "poisson"
    constant = "constant"


def bench(
    target: Target = TARGET,
    model: ModelName = "",
    concurrency: Annotated[
        str | None, typer.Option(metavar="N[,N...]", help="Calls in flight, a run for each number. Default: 8.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="R[,R...]", help="Calls due a second, instead of --concurrency.")
    ] = None,
    arrivals: Annotated[ArrivalsName, typer.Option(help="With --rate: random or even gaps.")] = ArrivalsName.poisson,
    max_in_flight: Annotated[int, typer.Option(help="With --rate: what is due beyond it waits, and counts.")] = 1000,
    duration: Annotated[float | None, typer.Option(help="Seconds of each run. Default: 10.")] = None,
    requests: Annotated[int | None, typer.Option(help="Calls of each run, instead of --duration.")] = None,
    warm_up: Annotated[float, typer.Option(help="Seconds before each run that are left out.")] = 1.0,
    batch_size: Annotated[int, typer.Option(help="Texts in each call.")] = 1,
    input_path: Annotated[
        str | None,
        typer.Option(
            "--input", "-i", help="A file of texts or rows, a pattern in quotes, or `-`. Default: built-in texts."
        ),
    ] = None,
    input_format: Annotated[Format | None, typer.Option("--format", help="Of the input. Default: as named.")] = None,
    timeout: Timeout = 30.0,
    channels: Annotated[int, typer.Option(help="Connections, used in turn.")] = 1,
    priority: Annotated[
        PriorityName, typer.Option(help="Class of the calls: a busy server computes interactive ones first.")
    ] = PriorityName.bulk,
    truncate: Annotated[bool, typer.Option(help="Cut what is too long, instead of having it refused.")] = True,
    seed: Annotated[int, typer.Option(help="Of random gaps.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="All figures as one JSON object.")] = False,
    allow_failures: Annotated[bool, typer.Option("--allow-failures", help="Exit code 0 though calls failed.")] = False,
) -> None:
    """Load a server: how much it takes, and how soon it replies."""
    name, _, version = model.partition("/")
    try:
        settings = BenchSettings(
            target=target,
            credentials=access().credentials(),
            token=access().token,
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
