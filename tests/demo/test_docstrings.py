"""Docstrings: finding, cleaning to sentences, entries of parameters."""

import inspect
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo.docstrings import (
    PYTHON,
    Source,
    answers,
    find_sources,
    installed_libraries,
    is_sentence,
    paragraphs,
    parse_parameters,
    public_name,
    read_docstrings,
    sentences,
    strip_markup,
)


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("Use ``axis`` with :func:`~numpy.core.mean` here.", "Use axis with mean here."),
        ("See :class:`Axes` and :py:meth:`.Axes.plot`.", "See Axes and Axes.plot."),
        ("A `link <https://example.org>`_ to **bold** and *slanted* text.", "A link to bold and slanted text."),
        ("Read [the guide](https://example.org/a_(b)) and [`~transformers.Model`].", "Read the guide and Model."),
        ("As shown by others [1]_, this holds [CIT2002]_.", "As shown by others, this holds."),
        ("The product 2 * 3 * 4 and *args stay.", "The product 2 * 3 * 4 and *args stay."),
        ("Names like file_name and self.x_ stay.", "Names like file_name and self.x stay."),
    ],
)
def test_strips_marks(marked: str, plain: str) -> None:
    """Marks of reStructuredText and Markdown go, the words in them stay."""
    assert strip_markup(marked) == plain


@given(st.text(alphabet="ab`*_[]|:<>~ \t.\n\u2028()", max_size=60))
def test_markup_never_fails(text: str) -> None:
    """Whatever the marks, the result is one line with single spaces."""
    assert strip_markup(text) == " ".join(strip_markup(text).split())


DOCSTRING = """Compute the mean of some numbers.

    The work is done by others, e.g. Numpy does it. The axis
    is optional: it may be left out.

    >>> mean([1, 2])
    This looks like a sentence but is output.

    Write it like this::

        The code is not prose at all.

    .. note:: This note is kept as well.

    .. versionadded:: 1.2
        This was added a long time ago.

    ====== ======
    Name   Value
    ====== ======
    These cells belong   to a table here.

    ```python
    This is source code and not prose.
    ```

    Parameters
    ----------
    axis : int, optional
        The axis that the mean is taken along.
    other_parameter_of_this : {'a', 'b'}
        Which of the two ways is taken.

    See Also
    --------
    median : Another thing that can be computed.

    Notes
    ~~~~~
    - The first point of the list goes on
      over two lines.
    - The second point is also here.

    References
    ----------
    .. [1] Somebody wrote a book about this.
    """


def test_keeps_prose_only() -> None:
    """Doctests, literal blocks, tables, fences, headings, type lines, cross-references and references are dropped."""
    assert sentences(inspect.cleandoc(DOCSTRING)) == [
        "Compute the mean of some numbers.",
        "The work is done by others, e.g. Numpy does it.",
        "The axis is optional: it may be left out.",
        "Write it like this:",
        "This note is kept as well.",
        "The axis that the mean is taken along.",
        "Which of the two ways is taken.",
        "The first point of the list goes on over two lines.",
        "The second point is also here.",
    ]


def test_strips_google_and_sphinx_entries() -> None:
    """Names and types at the start of entries go; what follows on the next lines stays with them."""
    text = """Args:
    x (`int`, *optional*, defaults to 1): The first number that
        is added.
    y: The second number.
:param z: The third one is
    never used.
:type z: a type that nobody reads
"""

    assert paragraphs(text) == ["The first number that is added.", "The second number.", "The third one is never used."]


def test_line_that_looks_like_an_entry_goes_on() -> None:
    """A line within a sentence is not taken for an entry because a colon follows its first word."""
    assert paragraphs("Turn the sentence into the conjunctive normal\nform: a product of sums.") == [
        "Turn the sentence into the conjunctive normal form: a product of sums."
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short.",
        "starts in the middle of a sentence.",
        "x = foo(bar) + 2 * y[3]",
        "This one is cut off at the",
        "If the file does not exist.",
        r"The angle \theta is given in degrees.",
        "See https://example.org for the rest.",
    ],
)
def test_refuses_what_is_not_a_sentence(text: str) -> None:
    """Fragments, code, formulas and addresses are no sentences."""
    assert not is_sentence(text)


def test_parses_parameters() -> None:
    """Joint names, stars, braces and types over several lines are read; entries without a type are left out."""
    text = """Do it.

Parameters
----------
x1, x2 : array_like
    The arrays that are added.
*args
    Never read.
**kwargs : dict
    Passed on.
mode : {'a',
        'b'}, default: 'a'
    Which one of them.
where: :class:`~a.Where` or ``None``, optional
untyped :
    There is no type.

Returns
-------
y : float
"""

    found = [(item.names, item.line, item.description) for item in parse_parameters(text)]

    assert found == [
        (("x1", "x2"), "array_like", ("The arrays that are added.",)),
        (("**kwargs",), "dict", ()),
        (("mode",), "{'a', 'b'}, default: 'a'", ("Which one of them.",)),
        (("where",), "Where or None, optional", ()),
    ]


@pytest.mark.parametrize(
    ("line", "kind", "default"),
    [
        ("int or tuple of ints, optional", "int or tuple of ints", None),
        ("{'a', 'b'}, default: 'a'", "{'a', 'b'}", "'a'"),
        ("float, default=0.5", "float", "0.5"),
        ("bool (optional, default is True).", "bool", "True"),
        ("array-like of shape (n, 2), default (0, 1)", "array-like of shape (n, 2)", "(0, 1)"),
        ("callable, defaults to np.mean.", "callable", "np.mean"),
        ("int, 5 by default", "int", None),
        ("str, default: the name of the file", "str", None),
        ("optional", None, None),
        ("a type that takes very many words to be said in full", None, None),
    ],
)
def test_finds_type_and_default(line: str, kind: str | None, default: str | None) -> None:
    """The type ends before `optional` and the default; the default is a value, not a description."""
    found = {what: line[start:end] for what, (start, end) in answers(line).items()}

    assert (found.get("type"), found.get("default")) == (kind, default)


@given(st.lists(st.sampled_from(["int", "or", "{'a', 'b'}", ", optional", "default", "=", ": ", "0.5", "(", ")", " "])))
def test_answers_lie_within_the_line(parts: list[str]) -> None:
    """Whatever the line, answers are non-empty pieces of it, without white space around them."""
    line = " ".join(" ".join(parts).split())

    for start, end in answers(line).values():
        assert line[start:end] == line[start:end].strip() != ""


def test_reads_docstrings_without_importing(tmp_path: Path) -> None:
    """Docstrings of modules, classes, methods and `add_newdoc` calls are read; the code is not run."""
    path = tmp_path / "things.py"
    path.write_text(
        '"""Module."""\nraise SystemExit\nclass A:\n    """Class."""\n    def f(self):\n        """Method."""\n'
        'if True:\n    def g():\n        """Function."""\n'
        'add_newdoc("lib", "sin", """\n    Sine.\n    """)\nadd_newdoc("lib", "B", ("size", "Size \\ud800."))\n'
    )

    found = [(item.name, item.text) for item in read_docstrings(Source("lib", "lib._core.things", path))]

    assert found == [
        ("lib", "Module."),
        ("lib.A", "Class."),
        ("lib.A.f", "Method."),
        ("lib.g", "Function."),
        ("lib.sin", "Sine."),
        ("lib.size", "Size ."),
    ]


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy._core.fromnumeric", "numpy"),
        ("scipy.stats._x.y", "scipy.stats"),
        ("a.b.c", "a.b"),
        ("_thread", "_thread"),
    ],
)
def test_public_name(module: str, name: str) -> None:
    """Private modules, and modules deeper than two levels, do not show in names."""
    assert public_name(module) == name


def test_finds_sources(tmp_path: Path) -> None:
    """Tests and packages of others are left out; modules of the standard library have no prefix."""
    for name in ("__init__.py", "a.py", "tests/test_a.py", "_vendor/b.py", "c/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()

    assert [item.module for item in find_sources({"lib": tmp_path})] == ["lib", "lib.a", "lib.c.d"]
    assert [item.module for item in find_sources({PYTHON: tmp_path})] == ["", "a", "c.d"]


def test_finds_installed_libraries() -> None:
    """The standard library is always there, and so are packages that are installed."""
    folders = installed_libraries()

    assert (folders[PYTHON] / "ast.py").is_file()
    assert (folders["numpy"] / "__init__.py").is_file()
