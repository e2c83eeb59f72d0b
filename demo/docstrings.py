"""Documentation strings of Python and of installed packages, cleaned to sentences, and their parameter entries.

Source files are parsed, never imported, so that nothing of what they do at import happens.

from demo.docstrings import find_sources, installed_libraries, read_docstrings, sentences
for docstring in read_docstrings(find_sources(installed_libraries())[0]):
    print(docstring.name, sentences(docstring.text))
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import sysconfig
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from training.text.sentences import split_sentences

PYTHON = "python"
"""Name of the standard library among the libraries."""
PACKAGES = (
    *("numpy", "scipy", "sklearn", "matplotlib", "networkx", "sympy", "pandas", "torch", "transformers", "optimum"),
    *("onnx", "onnxscript", "onnxruntime", "huggingface_hub", "tokenizers", "safetensors", "datasets", "pyarrow"),
    *("grpc", "prometheus_client", "pydantic", "pydantic_settings", "hypothesis", "rich", "typer", "tyro", "tqdm"),
    *("fsspec", "joblib", "mpmath", "PIL", "pyparsing", "jinja2", "requests", "urllib3"),
)
SKIPPED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "testing", "idle_test", "_vendor", "vendored", "externals")
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file with the name of its module and of its library."""

    library: str
    module: str
    path: Path


@dataclass(frozen=True, slots=True)
class Docstring:
    """The text of one docstring, without common indentation, and the name of what it documents (`numpy.mean`)."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """One entry of a numpydoc "Parameters" section."""

    names: tuple[str, ...]
    line: str
    """What stands after the colon: `int or None, optional`; white space normalised, markup removed."""
    description: tuple[str, ...]
    """Sentences."""


def installed_libraries() -> dict[str, Path]:
    """The folders of the standard library and of those of `PACKAGES` that are installed, by library."""
    folders = {PYTHON: Path(sysconfig.get_paths()["stdlib"])}
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders[package] = Path(next(iter(spec.submodule_search_locations)))
    return folders


def find_sources(folders: Mapping[str, Path]) -> list[Source]:
    """The Python files of each library, tests and vendored packages left out.

    Args:
        folders: by library; a folder is the package itself, save for `PYTHON`, whose modules have no prefix.
    """
    sources = []
    for library, folder in folders.items():
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder).with_suffix("").parts
            if not SKIPPED_FOLDERS.intersection(parts):
                prefix = () if library == PYTHON else (library,)
                names = [part for part in (*prefix, *parts) if part != "__init__"]
                sources.append(Source(library, ".".join(names), path))
    return sources


def read_docstrings(source: Source) -> list[Docstring]:
    """All docstrings of a file, in its order, and the texts handed to `add_newdoc` and `add_docstr`.

    Raises:
        OSError: when the file cannot be read.
        ValueError, SyntaxError, RecursionError, MemoryError: when it is not Python that this interpreter can parse.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about other people's escape sequences
        tree = ast.parse(source.path.read_bytes())
    return list(_docstrings_in(tree, public_name(source.module)))


def public_name(module: str) -> str:
    """The package from which users import what a module defines: `numpy` for `numpy._core.fromnumeric`."""
    parts = module.split(".")
    private = next((index for index, part in enumerate(parts) if part.startswith("_")), len(parts))
    return ".".join(parts[: max(1, min(private, 2))])


_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _docstrings_in(node: ast.AST, name: str) -> Iterator[Docstring]:
    text = ast.get_docstring(node) if isinstance(node, (ast.Module, *_DEFINITIONS)) else None
    if text:
        yield Docstring(name, _encodable(text))
    for child in (*getattr(node, "body", ()), *getattr(node, "orelse", ())):
        if isinstance(child, _DEFINITIONS):
            yield from _docstrings_in(child, f"{name}.{child.name}")
        elif isinstance(child, (ast.If, ast.Try)):
            yield from _docstrings_in(child, name)
        elif isinstance(child, ast.Expr) and isinstance(child.value, ast.Call):
            yield from _added_docstring(child.value, name)


def _added_docstring(call: ast.Call, name: str) -> Iterator[Docstring]:
    """`add_newdoc("numpy", "sin", text)`, `add_newdoc("agm", text)`, `add_docstr(torch.abs, text.format(...))`."""
    if not (isinstance(call.func, ast.Name) and call.func.id in ("add_newdoc", "add_docstr")) or len(call.args) < 2:
        return
    *target, text = call.args
    if isinstance(text, ast.Tuple) and len(text.elts) == 2:  # (attribute, text)
        target, text = [*target, text.elts[0]], text.elts[1]
    if isinstance(text, ast.Call) and isinstance(text.func, ast.Attribute):
        text = text.func.value
    last = target[-1]
    added = last.value if isinstance(last, ast.Constant) else getattr(last, "attr", None)
    if isinstance(added, str) and isinstance(text, ast.Constant) and isinstance(text.value, str):
        yield Docstring(f"{name}.{added}", inspect.cleandoc(_encodable(text.value)))


def _encodable(text: str) -> str:
    """Text without lone surrogates, which source files can spell but UTF-8 cannot."""
    return text.encode("utf-8", "ignore").decode("utf-8")


# Cleaning: first whole blocks that are not prose, then the marks at the start of paragraphs, then those within.

_FENCE = re.compile(r"\s*```")
_DIRECTIVE = re.compile(r"\.\.(?:\s+(\w[\w-]*)::)?(?:\s+(.*)|$)")
_ADMONITIONS = frozenset(("note", "warning", "tip", "important", "caution", "hint", "attention"))
_TABLE_LINE = re.compile(r"[|+].*[|+]$|.*\S {3,}\S|[-=~^\"'*#+_. ]{3,}$")
_UNDERLINE = re.compile(r"([-=~^\"'*#+_])\1{2,}$")
_NOT_PROSE = frozenset(("references", "see also", "methods", "reference"))
_BULLET = r"(?:[-*+•]|\(?(?:\d{1,2}|[a-z]|#)[.)])\s+(?=\S)"
_FIELD = r"[:@](?P<field>\w+)(?: [^:`]*)?:(?:\s+|$)"
_TYPE_LINE = r"[*\w][\w*.,\[\]()` -]{0,60} : (?=\S)"
_ENTRY = r"(?:[*`]{0,2}\w[\w.*`]*(?: \(.*\))?|\(?`[^:]*`\)?)(?::| --)(?:\s+|$)"
_MARK = re.compile(f"(?P<bullet>{_BULLET})?(?:(?P<type>{_TYPE_LINE})|{_FIELD}|(?P<entry>{_ENTRY}))?")
_FIELD_TYPES = frozenset(("type", "rtype", "vartype"))
_ENDED = (".", ":", ";", "!", "?")


def paragraphs(text: str) -> list[str]:
    """The prose of a docstring, a paragraph or entry each: no code, tables, headings, type lines or markup."""
    found: list[str] = []
    current: list[str] = []
    base, is_entry, hangs = 0, False, False
    for indent, line, underlined in _prose_lines(text):
        mark = _MARK.match(line)
        assert mark is not None
        goes_on = bool(current) and not current[-1].endswith(_ENDED) and (indent > base or not is_entry)
        starts = bool(mark["type"] or (mark.end() and not goes_on))
        if not line or starts or (indent != base and not (hangs and indent > base)):
            found.append(" ".join(current))
            current, base, is_entry = [], indent, starts
            hangs = starts and not (underlined and mark["entry"])
            only_type = mark["type"] or mark["field"] in _FIELD_TYPES
            line = "" if only_type else line[mark.end() :] if starts else line
        current += [line] if line else []
    found.append(" ".join(current))
    return [cleaned for item in found if (cleaned := strip_markup(item))]


def _prose_lines(text: str) -> Iterator[tuple[int, str, bool]]:
    """The lines (indentation, text, whether in an underlined section) outside of blocks that are not prose."""
    section, underlined = "", False
    lines = list(_outside_blocks(text))
    for position, line in enumerate(lines):
        stripped = line.strip()
        following = lines[position + 1].strip() if position + 1 < len(lines) else ""
        if stripped and _UNDERLINE.match(following) and len(following) <= len(stripped) + 8:
            section, underlined = stripped.lower().rstrip(":"), True
            yield 0, "", False
        elif section in _NOT_PROSE or _TABLE_LINE.match(stripped):
            yield 0, "", False
        else:
            yield len(line) - len(line.lstrip()), stripped, underlined


def _outside_blocks(text: str) -> Iterator[str]:
    """Lines outside of doctests, fences, literal blocks and directives; an empty line in their place."""
    deeper_than: int | None = None
    doctest = fence = False
    for line in text.expandtabs().split("\n"):
        stripped, indent = line.strip(), len(line) - len(line.lstrip())
        if deeper_than is not None and (not stripped or indent > deeper_than):
            yield ""
            continue
        deeper_than = None
        doctest = bool(stripped) and (doctest or stripped.startswith((">>>", "In [")))
        fence ^= bool(_FENCE.match(line))
        directive = _DIRECTIVE.match(stripped)
        if doctest or fence or _FENCE.match(line):
            yield ""
        elif directive and directive[1] in _ADMONITIONS:
            yield " " * indent + (directive[2] or "")
        elif directive:
            deeper_than = indent
            yield ""
        elif stripped.endswith("::"):
            deeper_than = indent
            yield line.rstrip()[:-1]
        else:
            yield line


_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\s?\[(?:\d+|[A-Za-z]+\d*)\]_", ""),  # footnotes
        (r"!?\[([^\]]+)\]\((?:[^()]|\([^()]*\))*\)", r"\1"),  # Markdown links
        (r"\[?`+~?([^`<]+?)\s*<[^`>]*>`_{0,2}", r"`\1`"),  # links and roles with a title
        (r":[\w:+.-]+:(?=`)", ""),
        (r"\[(`[^`]*`)\]", r"\1"),
        (r"`+!?~\.?(?:\w+\.)*(\w+(?:\(\))?)`+", r"\1"),  # ~a.b.c -> c
        (r"`+[~!.]?([^`]+?)`+_{0,2}(?!\w)", r"\1"),
        (r"(?<![\w*\\])\*{1,2}(?=[^\s*])([^*]*[^\s*])\*{1,2}(?![\w*])", r"\1"),
        (r"(?<!\w)\|([A-Za-z]\w*)\|", r"\1"),
        (r"(?<=\w)_(?=[\s.,;]|$)", ""),
        (r"\s+([.,;:])(?=\s|$)", r"\1"),
    )
)


_MARKS = re.compile(r"[`*\[|]|_\b|\s[.,;:]")


def strip_markup(text: str) -> str:
    """Text without marks of reStructuredText, Markdown and Sphinx: ``code`` -> code, :func:`~a.x` -> x."""
    if _MARKS.search(text):
        for pattern, replacement in _MARKUP:
            text = pattern.sub(replacement, text)
    return " ".join(text.split())


_LEFTOVER = re.compile(r"[\\{}`|<>=@^~]|::|https?:|www\.|%\(|%s|\.\.\.|\*\*|->|--|\$|\w\[|__\w+\.")
_PLAIN_WORD = re.compile(r"[(\"'“‘]*[A-Za-z]+(?:[-'’/][A-Za-z]+)*[.,;:!?)\"'”’]*$")
_FRAGMENT = re.compile(
    r"If (?!.*(?:,| then )).*"  # of a "Raises" section
    r"|(?:.*\b(?:a|an|and|are|as|at|be|by|for|from|if|in|is|must|of|on|or|that|the|to|with)|.*,)$"  # cut off
)
MIN_WORDS, MAX_WORDS = 4, 80


def is_sentence(text: str) -> bool:
    """Whether this reads as English: 4 to 80 words, seven in ten of them plain, no markup or code left."""
    words = text.split()
    if not MIN_WORDS <= len(words) <= MAX_WORDS or not text.lstrip("\"'(“")[:1].isupper():
        return False
    plain = sum(bool(_PLAIN_WORD.match(word)) for word in words)
    return plain >= 0.7 * len(words) and not _LEFTOVER.search(text) and not _FRAGMENT.match(text)


def sentences(text: str) -> list[str]:
    """The English sentences of a docstring."""
    return [item for paragraph in paragraphs(text) for item in split_sentences(paragraph) if is_sentence(item)]


# Parameter entries.

ANSWER_WORDS = 8
_SECTION = re.compile(r"^(?:Other )?Parameters\n-{3,}\n", re.MULTILINE)
_NEXT_SECTION = re.compile(r"^\S.*\n[-=]{3,}\s*$", re.MULTILINE)
_NAMES = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:\s*,\s*\*{0,2}[A-Za-z_]\w*)*)\s*:(?!:)\s*(.*)")
_TYPE_END = re.compile(
    r"[,;(\s]*(?:\b(?:optional|defaults?|required|(?:keyword|positional)[- ]only)\b|\S+ by default\b).*$", re.IGNORECASE
)
_DEFAULT = re.compile(
    r"""\b[Dd]efaults?\b(?:\s+(?:value|is|to|of))*\s*[=:]?\s*
    (?P<value>"[^"]*"|'[^']*'|\([^()]*\)|\[[^\[\]]*\]|[-+]?\.?\d[\w.+-]*?|[A-Z]\w*|\w+(?:\.\w+)+)\s*(?:[),;]|\.?$|\.\s)""",
    re.VERBOSE,
)


def parse_parameters(text: str) -> list[Parameter]:
    """The entries of the numpydoc sections "Parameters" and "Other Parameters"; those without a type are left out.

    A type may go on over deeper-indented lines as long as a bracket is open or a line ends in a comma or `or`.
    """
    parameters = []
    for section in _SECTION.finditer(text):
        end = _NEXT_SECTION.search(text, section.end())
        body = text[section.end() : end.start() if end else len(text)]
        for entry in re.split(r"\n(?=\S)", body.strip("\n")):
            if parameter := _parse_entry(entry):
                parameters.append(parameter)
    return parameters


def _parse_entry(entry: str) -> Parameter | None:
    first, *rest = entry.split("\n")
    match = _NAMES.match(first)
    if match is None:
        return None
    line = match[2].strip()
    while rest and rest[0].strip() and _is_open(line):
        line = f"{line} {rest.pop(0).strip()}"
    description = tuple(sentences(inspect.cleandoc("\n" + "\n".join(rest))))
    names = tuple(name.strip() for name in match[1].split(","))
    line = strip_markup(line).rstrip(".")
    return Parameter(names, line, description) if line else None


def _is_open(line: str) -> bool:
    return any(line.count(left) > line.count(right) for left, right in ("{}", "()", "[]")) or line.endswith(
        (",", " or", " of")
    )


def answers(line: str) -> dict[str, tuple[int, int]]:
    """Where the type line of a parameter says the type and the default: `type`, `default` -> (start, end)."""
    spans = {}
    end = _TYPE_END.search(line)
    kind = (line[: end.start()] if end else line).rstrip(" ,;(")
    if _is_type(kind):
        spans["type"] = (0, len(kind))
    if default := _DEFAULT.search(line):
        spans["default"] = default.span("value")
    return spans


def _is_type(text: str) -> bool:
    balanced = all(text.count(left) == text.count(right) for left, right in ("{}", "()", "[]"))
    return balanced and any(char.isalpha() for char in text) and len(text.split()) <= ANSWER_WORDS
