"""The command `bertline`: ask a Bertline server from a shell, about a text or files of them.

bertline models
bertline classify "A delightful film."
bertline embed --input texts.txt --output vectors.parquet
bertline bench --concurrency 1,4,16
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Annotated, Any, NoReturn

try:
    import rich.box
    import rich.console
    import rich.table
    import typer
except ModuleNotFoundError as missing:
    raise SystemExit(f"bertline: the command needs `{missing.name}`: pip install 'bertline[cli]'") from None

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read when grpc is imported; errors are told in one line of our own

from bertline.client import Client
from bertline.commands import rows
from bertline.commands.access import connect, set_access
from bertline.commands.bench import bench
from bertline.commands.options import TARGET, ModelName, Target, Timeout, asks
from bertline.errors import BertlineError
from bertline.jobs.ray_pool import RayFailed
from bertline.jobs.storage import FileError
from bertline.jobs.write import json_line, standard_output
from bertline.results import Model

_UsageError: Any = typer.BadParameter.__base__  # click's or typer's own, as the version of typer has it

app = typer.Typer(
    help="Ask a Bertline server. Results are JSON, a line for each input. The options below stand before the command, "
    "all others after it: bertline models --target HOST:PORT",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


Token = Annotated[
    str | None, typer.Option(envvar="BERTLINE_TOKEN", help="Of a server that asks for one; better in the environment.")
]
PemPath = partial(typer.Option, metavar="FILE")
TlsCa = Annotated[str | None, PemPath(envvar="BERTLINE_TLS_CA", help="Speak TLS; PEM of whom to trust for it.")]
TlsCert = Annotated[str | None, PemPath(help="Your certificate, of a server that asks for one (mutual TLS).")]
TlsKey = Annotated[str | None, PemPath(help="Its private key.")]


def _print(line: str) -> None:
    with standard_output() as stream:
        stream.write(f"{line}\n".encode())


def _print_version(wanted: bool) -> None:
    if wanted:
        _print(f"bertline {version('bertline')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it and exit.")]


@app.callback()
def access(
    token: Token = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    version: Version = False,
) -> None:
    """What all commands need to know."""
    set_access(token, tls_ca, tls_cert, tls_key)


for command in (rows.embed, rows.classify, rows.regress, rows.answer, rows.tag, rows.choose, rows.fill_mask):
    app.command()(asks(command))
app.command()(bench)


@app.command()
def models(
    target: Target = TARGET,
    timeout: Timeout = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="JSONL with the manifests, as when piped.")] = False,
) -> None:
    """What the server has, and why it cannot load what it has not; --json says all of it."""
    with connect(target, timeout) as client:
        found = client.models()
    if sys.stdout and sys.stdout.isatty() and not as_json:
        console = rich.console.Console(markup=False, emoji=False)
        table = _table(found, console.width)
        console.width = 1000  # no name is cut: the terminal wraps what is wider than it
        console.print(table)
        for model in found:
            if model.error:
                told = f"{model.name}/{model.version} is {model.state}: {model.error}"
                console.print(told, highlight=False, soft_wrap=True)
        return
    with standard_output() as stream:
        for model in found:
            stream.write(json_line(_model_row(model)))


@app.command()
def health(target: Target = TARGET, model: ModelName = "", timeout: Timeout = 5.0) -> None:
    """Whether a server, or a model of it, can be asked now: exit code 0 if so, 1 if not."""
    name, _, version = model.partition("/")
    if version and not name:
        raise typer.BadParameter(f"a version needs the name of its model, NAME/{version}: `{model}`")
    with connect(target, timeout) as client:
        is_serving = client.health(name, version)
        _print("serving" if is_serving else f"not serving{_reason(client, name, version)}")
    raise typer.Exit(not is_serving)


def _reason(client: Client, name: str, version: str) -> str:
    """Why a model cannot be asked, where the server knows it."""
    if not name:
        return ""
    try:
        client.model(name, version)
    except BertlineError as error:
        return f": {error}"
    return ""


def _model_row(model: Model) -> dict[str, Any]:
    values = asdict(model)
    del values["manifest_json"]
    return values | {"manifest": model.manifest}


def _table(found: Iterable[Model], width: int) -> rich.table.Table:
    """A row each, as wide as names are; labels are written into what width is left."""
    table = rich.table.Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for title in ("model", "state", "task", "precision", "tokens", "dim"):
        table.add_column(title, no_wrap=True)
    table.add_column("labels", max_width=max(16, width - 64), overflow="fold")
    for model in found:
        names = (f"{model.name}/{model.version}", model.state, model.task, model.precision)
        labels = textwrap.shorten(", ".join(model.labels), max(60, width - 80), placeholder="...")
        table.add_row(*names, str(model.max_seq_length or ""), str(model.dim or ""), labels)
    return table


def main() -> None:
    """Run the command: exit code 0, 1 with one line on stderr, or 2 when it was called wrongly."""
    _fill_closed_streams()
    try:
        sys.exit(app(standalone_mode=False))
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "bertline"
        message = error.format_message().replace("Value error, ", "").rstrip(".")  # pydantic's, in newer typer
        _fail(f"{message}{_place(error)}; see `{command} --help`", 2)
    except (BertlineError, FileError, RayFailed) as error:
        _fail(str(error), 1)
    except typer.Abort:  # Ctrl-C, with older versions of typer
        sys.exit(130)
    except OSError as error:
        place = f": `{error.filename}`" if error.filename else ""
        _fail(f"{error.strerror or error}{place}", 1)


def _fill_closed_streams() -> None:
    """Nobody reads standard error that is closed; a file must not get its number, and its messages."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _place(error: Any) -> str:
    """Where an option that is not known here stands."""
    option, context = getattr(error, "option_name", None), error.ctx
    if not option or not context:
        return ""
    if not context.parent:
        return ", options of a command stand after its name"
    names = [name for known in context.parent.command.params for name in known.opts]
    return f", it stands before `{context.info_name}`" if option in names else ""


def _fail(message: str, code: int) -> NoReturn:
    print(f"bertline: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
