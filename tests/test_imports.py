"""Tests of which package may load what. Each package is imported completely in its own process.

tests/clients/integrations/test_light.py tests `bertline.integrations`, whose modules load one library each.
"""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

OURS = {"bertline", "tasks", "training", "export", "serving", "recipes"}
MAY_IMPORT = {
    "bertline": set(),
    "tasks": set(),
    "training": {"tasks"},
    "export": {"training", "tasks"},
    "serving": {"tasks", "bertline"},
    "recipes": {"bertline", "export", "tasks", "training"},
}
MUST_NEVER_LOAD = {
    "bertline": {"torch", "onnxruntime", "tokenizers", "transformers"},
    "tasks": {"torch", "onnxruntime", "grpc", "transformers"},
    "training": {"onnxruntime", "grpc", "transformers"},
    "export": {"grpc"},
    "serving": {"torch", "transformers", "optimum"},
    "recipes": set(),
}
ROOMS_MAY_IMPORT = {"serving.core": set(), "serving.endpoints": {"serving.core"}}
"""Rooms of `serving` that every protocol shares, with the other rooms that each may import."""
PROTOCOLS = {"grpc", "grpc_health", "grpc_reflection", "grpc_status", "starlette", "httptools"}
IMPORT_ALL = """
import importlib, json, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
names = [name for name in names if not name.startswith("bertline.integrations.")]
imported = [importlib.import_module(name).__name__ for name in names if not name.endswith("__main__")]
print(json.dumps({"imported": imported, "loaded": sorted(sys.modules)}))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Return the home directory of these processes."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def modules(home):
    """Return a function that imports a package and returns the names of its modules and of all loaded modules."""
    root = Path(__file__).parents[1]
    removed = {"XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY"}
    environment = {name: value for name, value in os.environ.items() if name not in removed} | {"HOME": str(home)}
    seen = {}

    def import_package(package):
        if package not in seen:
            command = [sys.executable, "-c", IMPORT_ALL, package]
            result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            seen[package] = json.loads(result.stdout.splitlines()[-1])
        return seen[package]

    return import_package


@pytest.mark.parametrize("package", sorted(OURS))
def test_every_package_has_modules(modules, package):
    """The import finds modules in every package, so the tests below test something."""
    assert modules(package)["imported"]


@pytest.mark.parametrize("package", sorted(OURS))
def test_directions(modules, package):
    """A package loads only packages that it may import, and no forbidden library."""
    loaded = {name.partition(".")[0] for name in modules(package)["loaded"]}

    assert (loaded & OURS) - {package} <= MAY_IMPORT[package]
    assert not loaded & MUST_NEVER_LOAD[package]


def test_the_server_loads_only_the_messages(modules):
    """The server loads only `bertline.v1` from the client's package."""
    loaded = {name for name in modules("serving")["loaded"] if name.startswith("bertline.")}

    assert all(name == "bertline.v1" or name.startswith("bertline.v1.") for name in loaded)


@pytest.mark.parametrize("room", sorted(ROOMS_MAY_IMPORT))
def test_rooms_of_the_server_know_no_protocol(modules, room):
    """The core and the endpoints load no other room of the server, and no gRPC or HTTP library."""
    loaded = modules(room)["loaded"]
    rooms = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("serving.")}

    assert rooms - {room} <= ROOMS_MAY_IMPORT[room]
    assert not {name.partition(".")[0] for name in loaded} & (PROTOCOLS | MUST_NEVER_LOAD["serving"])


@pytest.mark.parametrize("package", ["export", "serving"])
def test_telemetry_is_off(modules, home, package):
    """ONNX Runtime sends no telemetry and writes no telemetry file."""
    assert "onnxruntime" in modules(package)["loaded"]
    assert not list(home.rglob("*onnxruntime*"))


def imports(path, module, modules):
    """Yield the modules that a source file imports anywhere, also in functions and under TYPE_CHECKING."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names = (f"{source}.{alias.name}" for alias in node.names)
            yield from (name if name in modules else source for name in names if {name, source} & modules)


def find_import_cycles(graph):
    """Return sorted groups of modules that import each other (Tarjan's strongly connected components)."""
    index, low, stack, circles = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == index[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                circles.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return circles


def import_graph(root, package):
    """Return the modules of the same package that each module of a package imports."""
    paths = {}
    for path in (root / package).rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: sorted({*imports(path, name, paths.keys())} - {name}) for name, path in paths.items()}


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_modules_import_each_other(package):
    """No package has an import cycle among its modules, TYPE_CHECKING included."""
    root = Path(__file__).parents[1] / ("clients" if package == "bertline" else "")

    assert find_import_cycles(import_graph(root, package)) == []


TRAINING_FOLDERS = (
    *("command_line", "model", "checkpoint", "text", "loop", "data", "objectives"),
    *("reports", "finetuning", "distillation"),
)
"""Folders of `training`, each of which imports only those before it. The commands at its root import all of them."""


def folder_graph(root, package):
    """Return the folders of the same package that each folder imports; modules of the root are in the root's folder."""
    modules = import_graph(root, package)
    packages = {name.rpartition(".")[0] for name in modules} | {package}
    folders = {name: name if name in packages else name.rpartition(".")[0] for name in modules}
    graph = {folder: set() for folder in folders.values()}
    for name, others in modules.items():
        graph[folders[name]] |= {folders[other] for other in others} - {folders[name]}
    return graph


@pytest.mark.parametrize("package", sorted(OURS))
def test_no_folders_import_each_other(package):
    """No two folders of a package import each other, except for a folder and those in it."""
    graph = folder_graph(Path(__file__).parents[1] / ("clients" if package == "bertline" else ""), package)

    tied = {(a, b) for a, others in graph.items() for b in others if a < b and a in graph[b]}
    assert [(a, b) for a, b in tied if not b.startswith(f"{a}.")] == []


def test_folders_of_training_stand_in_an_order():
    """A folder of `training` imports only folders before it in the list, never the commands at the root."""
    graph = folder_graph(Path(__file__).parents[1], "training")
    order = ["training.model.architectures", *(f"training.{name}" for name in TRAINING_FOLDERS), "training"]

    assert set(graph) == set(order)
    for folder, others in graph.items():
        assert others <= set(order[: order.index(folder)]) | {"training.model"} - {folder}, folder


def test_import_cycles_are_found(tmp_path):
    """The search finds a cycle of two modules that contains an import under TYPE_CHECKING."""
    (tmp_path / "package").mkdir()
    for name, text in (
        ("__init__", ""),
        ("a", "from package.b import f"),
        ("b", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from package import a"),
        ("c", "from . import a"),
    ):
        (tmp_path / "package" / f"{name}.py").write_text(text)

    assert find_import_cycles(import_graph(tmp_path, "package")) == [["package.a", "package.b"]]


def test_reading_checkpoints_is_light():
    """`training.checkpoint.reader` loads neither templates nor data readers."""
    code = (
        "import sys, training.checkpoint.reader; print(sorted({'jinja2', 'pyarrow', 'matplotlib'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_the_client_of_the_hub_is_loaded_when_needed():
    """Commands load `huggingface_hub` only to resolve the name of a repository."""
    code = "import sys, training.grid, export.__main__; print('huggingface_hub' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "False"
