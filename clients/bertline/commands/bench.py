"""Command `bertline bench`."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from typing import Annotated, Any, TypeVar

import typer

from bertline._connection import Connection, Priority
from bertline.bench.inputs import make_calls, read_inputs
from bertline.bench.load import SET_UP_S, run_loads
from bertline.bench.report import Arrivals, Load, header
from bertline.client import Client
from bertline.commands.credentials import credentials
from bertline.commands.options import TARGET, Target, Timeout, model_option
from bertline.jobs.sources import Format
from bertline.jobs.write import json_line, standard_output

NumberT = TypeVar("NumberT", int, float)
EXIT_INTERRUPTED = 130
"""Exit code after Ctrl-C, as of a shell."""


def bench(
    target: Target = TARGET,
    model: Annotated[str, model_option("the default model of the server")] = "",
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N[,N...]", help="Number of concurrent calls; one run for each number. Default: 8."),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="R[,R...]", help="Calls a second; one run for each number. Replaces --concurrency."),
    ] = None,
    arrivals: Annotated[
        Arrivals, typer.Option(help="Gaps between calls, with --rate: random (poisson) or even (constant).")
    ] = "poisson",
    max_in_flight: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of concurrent calls, with --rate. Later calls wait; their wait counts."
        ),
    ] = 1000,
    duration: Annotated[float | None, typer.Option(min=0, help="Length of each run, in seconds. Default: 10.")] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of calls of each run. Replaces --duration.")
    ] = None,
    warm_up: Annotated[float, typer.Option(min=0, help="Time before each run that is not measured, in seconds.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of texts in each call.")] = 1,
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
    priority: Annotated[
        Priority, typer.Option(help="Priority of the calls: a busy server computes interactive calls first.")
    ] = "bulk",
    truncate: Annotated[
        bool, typer.Option(help="Truncate inputs that are too long, or let the server refuse them.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as one JSON object.")] = False,
) -> None:
    """Measure throughput and latency of a server under load."""
    if concurrency and rate:
        raise typer.BadParameter("give --concurrency (calls in flight) or --rate (calls a second), not both")
    if duration is not None and requests is not None:
        raise typer.BadParameter("give --duration or --requests, not both")
    shared = Load(
        arrivals=arrivals,
        max_in_flight=max_in_flight,
        duration_s=10.0 if duration is None and requests is None else duration,
        num_calls=requests,
        timeout_s=timeout,
    )
    if rate:
        loads = [replace(shared, rate=number) for number in read_numbers("--rate", rate, float)]
    else:
        numbers = read_numbers("--concurrency", concurrency or "8", int)
        loads = [replace(shared, concurrency=number) for number in numbers]
    name, _, version = model.partition("/")
    access: dict[str, Any] = {"credentials": credentials().for_channel(), "token": credentials().token}
    with standard_output() as stream:

        def show(line: str) -> None:
            if not as_json:
                stream.write(f"{line}\n".encode("utf-8", "backslashreplace"))
                stream.flush()

        try:
            connection = Connection(
                target=target,
                timeout=timeout,
                batch_size=batch_size,
                num_in_flight=1,
                check_health=False,
                priority=priority,
                **access,
            )
            with Client(target, timeout=SET_UP_S, **access) as client:
                served = client.model(name, version)
            inputs = read_inputs(served.task, input_path, input_format)
            calls = make_calls(served.task, inputs, batch_size, name, version, truncate)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        about = {
            "model": f"{served.name}/{served.version}",
            "task": served.task,
            "precision": served.precision,
            "target": target,
            "method": calls.method,
            "batch_size": batch_size,
        }
        texts = "1 text" if batch_size == 1 else f"{batch_size} texts"
        show("{model} ({task}, {precision}) at {target}: {method}, {texts} a call".format(**about, texts=texts))
        show(header(loads[0]))
        runs, interrupted = run_loads(connection, calls, loads, warm_up, lambda run: show(run.row()))
        for remark in chain.from_iterable(run.remarks() for run in runs):
            show(remark)
        if interrupted:
            show("interrupted by Ctrl-C")
        if as_json:
            figures = [run.figures() for run in runs]
            stream.write(json_line(about | {"num_inputs": len(inputs), "interrupted": interrupted, "runs": figures}))
    has_failed = any(run.num_failed or run.num_unsent or not run.num_ok for run in runs)
    raise typer.Exit(EXIT_INTERRUPTED if interrupted else int(has_failed))


def read_numbers(option: str, text: str, kind: type[NumberT]) -> list[NumberT]:
    """Parse numbers above 0 that are separated by commas.

    Raises:
        typer.BadParameter: if the text is anything else.
    """
    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < number < math.inf for number in numbers):
        whole = "a whole number" if kind is int else "a number"
        raise typer.BadParameter(f"{option} must be {whole} above 0, or several separated by commas: `{text}`")
    return numbers
