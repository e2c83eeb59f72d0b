"""Docstrings: sentences, and parameters with types and defaults."""

import inspect

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recipes.demo.docstrings import is_sentence, parse_docstring, sentences, strip_markup


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("Use ``axis`` with :func:`numpy.mean` here.", "Use axis with numpy.mean here."),
        ("See :class:`Axes` and :py:meth:`.Axes.plot`.", "See Axes and Axes.plot."),
        ("A `link <https://example.org>`_ to **bold** and *slanted* text.", "A link to bold and slanted text."),
        (
            "Read [the guide](https://example.org/a) and `~transformers.Model`.",
            "Read the guide and transformers.Model.",
        ),
        ("As shown by others [1]_, this holds [CIT2002]_.", "As shown by others, this holds."),
        ("The product 2 * 3 * 4 and *args stay.", "The product 2 * 3 * 4 and *args stay."),
    ],
)
def test_markup_is_removed(marked: str, plain: str) -> None:
    """Marks of reStructuredText and Markdown are removed; their words stay."""
    assert strip_markup(marked) == plain


@example(": :")
@given(st.text(alphabet="ab`*_[]|:<>~ \t.\n\u2028()-", max_size=60))
def test_any_text_can_be_parsed(text: str) -> None:
    """No combination of marks raises, and markup is removed to one line with single spaces."""
    parse_docstring("a", text)

    assert strip_markup(text) == " ".join(strip_markup(text).split())


DOCSTRING = """Compute the mean of some numbers.

    The work is done by others, e.g. Numpy does it. The axis
    is optional: it may be left out.

    >>> mean([1, 2])
    This looks like a sentence but is output.

    Write it like this::

        The code is not prose at all.

    .. versionadded:: 1.2
        This was added a long time ago.

    ====== ======
    Name   Value
    ====== ======
    These cells belong   to a table here.

    ```python
    This is source code and not prose.
    ```

    A heading that is not known here.
    ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~

    - The first point of the list goes on
      over two lines.
    - The second point is also here.

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
    -----
    There is a note about the result.

    References
    ----------
    .. [1] Somebody wrote a book about this.
    """


def test_only_prose_is_kept() -> None:
    """Doctests, literal blocks, tables, fences, headings, cross-references and references are dropped."""
    found = parse_docstring("mean", inspect.cleandoc(DOCSTRING))

    assert found.summary == "Compute the mean of some numbers."
    assert found.sentences == [
        "Compute the mean of some numbers.",
        "The work is done by others, e.g. Numpy does it.",
        "The axis is optional: it may be left out.",
        "The first point of the list goes on over two lines.",
        "The second point is also here.",
        "The axis that the mean is taken along.",
        "Which of the two ways is taken.",
        "There is a note about the result.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Too short.",
        "starts in the middle of a sentence.",
        "X = foo(bar) + 2 * y[3].",
        "This one is cut off at the",
        r"The angle \theta is given in degrees.",
        "See https://example.org for the rest.",
    ],
)
def test_fragments_and_code_are_not_sentences(text: str) -> None:
    """Fragments, code, formulas and addresses are not sentences."""
    assert not is_sentence(text)
    assert sentences(text) == []


@pytest.mark.parametrize(
    ("line", "kind", "default"),
    [
        ("int or tuple of ints, optional", "int or tuple of ints", ""),
        ("{'a', 'b'}, default: 'a'", "{'a', 'b'}", "'a'"),
        ("float, default=0.5", "float", "0.5"),
        ("string (default='weight')", "string", "'weight'"),
        ("array-like of shape (n, 2), default (0, 1)", "array-like of shape (n, 2)", "(0, 1)"),
        ("callable, defaults to np.mean.", "callable", ""),
        ("str, default: the name of the file", "str", ""),
        ("{'a',", "", ""),
        ("a type that takes very many words to be said in full, default 1", "", ""),
    ],
)
def test_type_and_default_are_found(line: str, kind: str, default: str) -> None:
    """The type ends before `optional` and the default; the default is a Python literal; a type is required."""
    text = f"Do it.\n\nParameters\n----------\nx : {line}\n"
    found = [(item.type, item.default) for item in parse_docstring("f", text).parameters]

    assert found == ([(kind, default)] if kind else [])
