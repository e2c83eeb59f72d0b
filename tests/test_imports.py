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

ROOT = Path(__file__).parents[1]
OURS = {"bertline", "tasks", "training", "export", "serving", "recipes"}
MAY_IMPORT = {
    "bertline": set(),
    "tasks": set(),
    "training": {"tasks"},
    "export": {"training", "tasks"},
    "serving": {"tasks", "bertline"},
    "recipes": {"bertline", "export", "tasks", "training"},
}
"""Packages of ours that a package may import. What those import, they state themselves."""
MUST_NEVER_LOAD = {
    "bertline": {"torch", "onnxruntime", "tokenizers", "transformers"},
    "tasks": {"torch", "onnxruntime", "grpc", "transformers"},
    "training": {"onnxruntime", "grpc", "transformers"},
    "export": {"grpc"},
    "serving": {"torch", "transformers", "optimum"},
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
    removed = {"XDG_CACHE_HOME", "ORT_DISABLE_TELEMETRY"}
    environment = {name: value for name, value in os.environ.items() if name not in removed} | {"HOME": str(home)}
    seen = {}

    def import_package(package):
        if package not in seen:
            command = [sys.executable, "-c", IMPORT_ALL, package]
            result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            assert result.returncode == 0, result.stderr
            seen[package] = json.loads(result.stdout.splitlines()[-1])
        return seen[package]

    return import_package


@pytest.mark.parametrize("package", sorted(OURS))
def test_directions(package):
    """A package imports only packages of ours that it may import."""
    paths = (ROOT / ("clients" if package == "bertline" else "") / package).rglob("*.py")
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text()))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    found = {name.partition(".")[0] for name in names} & OURS

    assert package in found
    assert found - {package} <= MAY_IMPORT[package]


@pytest.mark.parametrize("package", sorted(MUST_NEVER_LOAD))
def test_libraries(modules, package):
    """A package loads no forbidden library, and no other package of ours."""
    found = modules(package)
    loaded = {name.partition(".")[0] for name in found["loaded"]}

    assert found["imported"]
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
    root = ROOT / ("clients" if package == "bertline" else "")

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
    graph = folder_graph(ROOT / ("clients" if package == "bertline" else ""), package)

    tied = {(a, b) for a, others in graph.items() for b in others if a < b and a in graph[b]}
    assert [(a, b) for a, b in tied if not b.startswith(f"{a}.")] == []


def test_folders_of_training_stand_in_an_order():
    """A folder of `training` imports only folders before it in the list, never the commands at the root."""
    graph = folder_graph(ROOT, "training")
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


def test_libraries_are_loaded_when_needed():
    """Reading checkpoints loads neither templates nor data readers, and commands no client of the hub."""
    code = (
        "import sys, training.checkpoint.reader; print({'jinja2', 'pyarrow', 'matplotlib'} & set(sys.modules)); "
        "import training.grid, export.__main__; print('huggingface_hub' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.split("\n") == ["set()", "False", ""]
