"""Python files: finding them, and reading their docstrings."""

from pathlib import Path

from recipes.demo.modules import PYTHON, Source, find_sources, read_module


def test_docstrings_are_read_without_importing(tmp_path: Path) -> None:
    """Docstrings of modules, classes, methods and functions are read; the code is not run."""
    path = tmp_path / "things.py"
    path.write_text(
        '"""This is a module."""\nraise SystemExit\n'
        'class A:\n    """This is a class."""\n'
        '    def __init__(self):\n        """This makes an object."""\n'
        '    def f(self):\n        """This is a method \\ud800."""\n'
        'if True:\n    def g():\n        """This is a function."""\n'
        'def h():\n    """h"""\n'
    )

    module = read_module(Source("lib", "lib._core.things", path))

    assert [(item.name, *item.sentences) for item in module.docstrings] == [
        ("lib", "This is a module."),
        ("lib.A", "This is a class."),
        ("lib.A", "This makes an object."),
        ("lib.A.f", "This is a method ."),
        ("lib.g", "This is a function."),
    ]


def test_tests_and_vendored_packages_are_not_sources(tmp_path: Path) -> None:
    """Folders of tests and vendored packages are skipped; modules of the standard library have no prefix."""
    for name in ("__init__.py", "a.py", "tests/test_a.py", "_vendor/b.py", "c/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert [item.module for item in find_sources({"lib": tmp_path})] == ["lib", "lib.a", "lib.c.d"]
    assert [item.module for item in find_sources({PYTHON: tmp_path})] == ["", "a", "c.d"]
