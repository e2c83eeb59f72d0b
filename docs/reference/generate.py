"""Write the pages of docs/reference that come from the code.

    python docs/reference/generate.py           # writes them; `make docs` does it
    python docs/reference/generate.py --check   # fails if one is out of date

Flags are read from settings and recipes (names, defaults, docstrings), options of `bertline` from its own help.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer.main
import tyro

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
NOTE = "<!-- Written by docs/reference/generate.py: change the code, then run `make docs`. -->"
MIN_COMMON = 3
"""Rows that commands must have in common for a section about them."""
Row = tuple[str, ...]
ALIASES = ("/tei/", "/versions/")
"""Parts of the paths of routes that answer as another one does."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; each cell becomes one line."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [
            re.sub(r"<(?=[^`]*(`[^`]*`[^`]*)*$)", "&lt;", " ".join(cell.replace("|", "\\|").split())) for cell in row
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the docstrings under the fields of a class."""
    found: dict[str, str] = {}
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    for item, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(following, ast.Expr):
            found[item.target.id] = inspect.cleandoc(str(ast.literal_eval(following.value)))
    return found


def shown(value: Any) -> str:
    """Return a default as a reader of a table wants it."""
    if value in (None, "None", (), [], {}, ""):
        return ""
    if isinstance(value, bool) or value in ("True", "False"):
        return "yes" if value in (True, "True") else "no"
    return f"`{value}`"


def flags(cls: type) -> list[Row]:
    """Return the flags that tyro makes of a dataclass, with their defaults and docstrings; one row for all columns."""
    rows = list[Row]()
    for action in tyro.extras.get_parser(cls)._actions:
        if action.dest == "help":
            continue
        flag = action.option_strings[0] if action.option_strings else str(action.metavar)
        if prefix := re.match(r"--(dev-)?columns\.", flag):
            data = "`--dev`" if prefix[1] else "the data"
            row = (f"`{prefix[0]}*`", "", f"[Columns](training.md#columns) of {data}, if they have other names.")
            if row not in rows:
                rows.append(row)
            continue
        found = re.fullmatch(r"(?s)(.*?)\s*\((default: (.*)|required|optional|unset by default)\)", action.help or "")
        text, default = (found[1], found[3]) if found else (action.help or "", None)
        rows.append((f"`{flag}`", shown(default), text))
    return rows


def sections(commands: Mapping[str, tuple[str, list[Row]]], column: str) -> list[str]:
    """Return a section for each command; rows that several commands have in common follow once, in their own section.

    Args:
        commands: text and rows of each command.
        column: head of the first column.
    """
    users: dict[Row, list[str]] = {}
    for name, (_, rows) in commands.items():
        for row in rows:
            users.setdefault(row, []).append(name)
    counts = Counter(map(tuple, users.values()))
    groups = (names for names, count in counts.items() if len(names) > 1 and count >= MIN_COMMON)
    common: dict[tuple[str, ...], list[Row]] = {names: [] for names in sorted(groups, key=len, reverse=True)}
    for row, names in users.items():
        for group, shared in common.items():
            if set(group) <= set(names):
                shared.append(row)
                names[:] = [name for name in names if name not in group]
    parts = []
    for name, (text, rows) in commands.items():
        also = [f"[{len(names)}](#{_anchor(_common(names))})" for names in common if name in names]
        own = [row for row in rows if name in users[row]]
        texts = [f"## {name}", text, table([column, "default", ""], own) if own else ""]
        texts.append(f"Also those of {' and '.join(also)} commands." if also else "")
        parts.append("\n\n".join(filter(None, texts)))
    return parts + [f"## {_common(names)}\n\n{table([column, 'default', ''], rows)}" for names, rows in common.items()]


def _common(names: Sequence[str]) -> str:
    """Return the heading of a section that several commands share."""
    short = [name.removeprefix("bertline ").removeprefix("python -m ") for name in names]
    return f"{', '.join(short[:-1])} and {short[-1]}"


def _anchor(heading: str) -> str:
    return re.sub(r"\s+", "-", re.sub(r"[^\w\- ]", "", heading.lower()))


def server() -> str:
    """Return the page of the server's flags."""
    from serving.settings import Settings

    rows = []
    for name, item in Settings.model_fields.items():
        flag = name.upper() if name == "models_dir" else f"--{name.replace('_', '-')}"
        default = None if item.default_factory else item.default
        rows.append([f"`{flag}`", shown(default), item.description or ""])
    text = inspect.cleandoc(Settings.__doc__ or "")
    head = f"# Server flags\n\n`python -m serving [MODELS_DIR] [flags]`\n\n{text}\n\n"
    return head + table(["flag", "default", ""], rows)


def training() -> str:
    """Return the page of the training commands' flags."""
    from training.contrastive import ContrastiveRecipe
    from training.corpus import CorpusRecipe
    from training.data.columns import Columns
    from training.distillation.tasks import TaskDistillRecipe
    from training.distillation.vectors import VectorDistillRecipe
    from training.evaluate import EvaluateRecipe
    from training.finetuning.recipe import FinetuneRecipe
    from training.grid import GridRecipe
    from training.pretrain import PretrainRecipe
    from training.vocab import VocabRecipe

    commands = {
        "vocab": VocabRecipe,
        "corpus": CorpusRecipe,
        "pretrain": PretrainRecipe,
        "finetune": FinetuneRecipe,
        "contrastive": ContrastiveRecipe,
        "distill": TaskDistillRecipe,
        "distill embedding": VectorDistillRecipe,
        "grid": GridRecipe,
        "evaluate": EvaluateRecipe,
    }
    parts = ["# Training flags\n\n`make <command> ARGS='--flag value'`, or `python -m training.<command>`."]
    described = {
        name: (inspect.cleandoc(recipe.__doc__ or "").splitlines()[0], flags(recipe))
        for name, recipe in commands.items()
    }
    columns = [(f"`--columns.{flag[3:]}", *rest) for flag, *rest in flags(Columns)]
    text = "Names of the columns of data, as `--columns.text review`; `--dev-columns.` for `--dev` of embeddings."
    parts += [*sections(described, "flag"), f"## Columns\n\n{text}\n\n{table(['flag', 'default', ''], columns)}"]
    return "\n\n".join(parts)


def export() -> str:
    """Return the page of the export's flags."""
    from export.__main__ import ExportArguments, TuneArguments

    commands = {"python -m export": ("", flags(ExportArguments)), "python -m export tune": ("", flags(TuneArguments))}
    return "\n\n".join(["# Export flags", *sections(commands, "flag")])


def manifest() -> str:
    """Return the page of the fields of manifest.json."""
    from tasks.bundle.manifest import Execution, Manifest

    parts = ["# Manifest\n\n`manifest.json` in a model directory holds everything that the server must know."]
    for title, cls in (("Fields", Manifest), ("Fields of execution", Execution)):
        docs, hints, rows = attribute_docs(cls), get_type_hints(cls), []
        for item in fields(cls):
            hint = hints[item.name]
            kind = re.sub(r"[\w.]+\.(\w+)", r"\1", str(hint) if get_args(hint) else hint.__name__)
            rows.append([f"`{item.name}`", f"`{kind}`", docs.get(item.name, "")])
        parts.append(f"## {title}\n\n{table(['field', 'type', ''], rows)}")
    return "\n\n".join(parts)


def command() -> str:
    """Return the page of the commands and options of `bertline`."""
    from bertline.cli import app

    root: Any = typer.main.get_command(app)
    described = {
        f"bertline {name}": (inspect.cleandoc(item.help or ""), _options(item)) for name, item in root.commands.items()
    }
    head = table(["option", "default", ""], _options(root))
    return "\n\n".join([f"# Command bertline\n\n{head}", *sections(described, "option")])


def _options(command: Any) -> list[Row]:
    rows = list[Row]()
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        is_option = parameter.param_type_name == "option"
        names = (
            [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar or parameter.name.upper()]
        )
        default = parameter.default if is_option and not callable(parameter.default) else None
        rows.append((", ".join(f"`{name}`" for name in names), shown(default), parameter.help or ""))
    return rows


def http() -> str:
    """Return the page of the routes of the HTTP API."""
    from unittest.mock import Mock

    from serving.http_api.app import all_operations
    from serving.http_api.server_routes import describe_routes

    operations = all_operations(Mock(), Mock(), Mock(), max_request_bytes=0, health_problem=str, run_canaries=Mock())
    described = describe_routes(operations)
    schemas = described["components"]["schemas"]
    routes, rpcs, requests = [], list[str](), dict[str, None]()
    for path, methods in described["paths"].items():
        if any(part in path for part in ALIASES):
            continue
        for method, about in methods.items():
            body = about.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            names = [_schema_name(item) for item in body.get("anyOf", [body]) if "$ref" in item]
            if names and all(map(_is_rpc, names)):
                rpcs.append(f"`{method.upper()} {path}`")
                continue
            requests |= dict.fromkeys(name for name in names if not _is_rpc(name))
            links = " or ".join(map(_link, names))
            routes.append([f"`{method.upper()} {path}`", about["summary"], links])
    routes.append([", ".join(rpcs), "RPCs of bertline.v1, in protobuf's JSON mapping.", "[gRPC API](api.md)"])
    todo = list(requests)
    for name in todo:  # with the messages inside
        inside = dict.fromkeys(re.findall(r"#/components/schemas/([\w.]+)", str(schemas[name])))
        todo += [item for item in inside if item not in todo and not _is_rpc(item)]
    parts = [f"## {_title(name)}\n\n{_fields(schemas[name])}" for name in todo]
    text = (
        "Examples, headers and errors are in the [guide](../guides/http.md). `GET /openapi.json` of a server describes "
        "all fields for programs. A null field counts as absent. TEI's routes are also below `/tei/{model}`, those of "
        "the Open Inference Protocol below `/v2/models/{name}/versions/{version}`."
    )
    return "\n\n".join(["# HTTP API", text, table(["route", "what it does", "request"], routes), *parts])


def _is_rpc(name: str) -> bool:
    """Return True for a message of `bertline.v1`, whose fields the gRPC API explains."""
    from bertline.v1 import encoder_pb2

    return name in encoder_pb2.DESCRIPTOR.message_types_by_name


def _link(name: str) -> str:
    return f"`{name}`" if _is_rpc(name) else f"[{_title(name)}](#{_title(name).lower()})"


def _schema_name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _title(name: str) -> str:
    """Return the heading of a request: `tei.EmbedFields` becomes `tei-EmbedFields`."""
    return name.replace(".", "-")


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = []
    for name, value in schema["properties"].items():
        default = f"`{json.dumps(value['default'])}`" if value.get("default") is not None else ""
        rows.append([f"`{name}`", _type(value), "needed" if name in required else default])
    return table(["field", "type", "default"], rows) if rows else "No fields."


def _type(value: dict[str, Any]) -> str:
    """Return the type of a field in words."""
    if "$ref" in value:
        return _link(_schema_name(value))
    if "anyOf" in value:
        others = [item for item in value["anyOf"] if item.get("type") != "null"]
        return " or ".join(dict.fromkeys(map(_type, others))) or "null"
    if "enum" in value:
        return ", ".join(f"`{item}`" for item in value["enum"])
    if "const" in value:
        return f"`{value['const']}`"
    if value.get("type") == "array":
        return f"list of ({_type(value.get('items', {}))})"
    return str(value.get("type", "any"))


PAGES = {
    "server.md": server,
    "training.md": training,
    "export.md": export,
    "manifest.md": manifest,
    "command.md": command,
    "http.md": http,
}


def main() -> None:
    """Write the pages, or compare them."""
    sys.path[:0] = [str(ROOT), str(ROOT / "clients")]
    warnings.filterwarnings("ignore", message="get_parser")  # tyro has no other way to list flags with their defaults
    stale = []
    for name, make in PAGES.items():
        title, _, rest = make().partition("\n")
        text = f"{title}\n\n{NOTE}\n{rest.rstrip()}\n"
        path = FOLDER / name
        if "--check" not in sys.argv:
            path.write_text(text, "utf-8")
        elif not path.exists() or path.read_text("utf-8") != text:
            stale.append(name)
    if stale:
        sys.exit(f"out of date: {', '.join(stale)}; run `make docs`")


if __name__ == "__main__":
    main()
