"""Data files of the demo, built from small trees of modules."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recipes.demo.data import MAX_REPEATS, Corpus, build
from recipes.demo.docstrings import Docstring, Parameter
from recipes.demo.labelled import contexts, excerpt, mask_names
from recipes.demo.modules import Module, Source, normalize, split_of

WORDS = ("alder", "birch", "cedar", "elm", "hazel", "larch", "maple", "oak", "pine", "rowan", "spruce", "willow", "yew")


def sentence(rng: random.Random, num_words: int) -> str:
    return f"The {' '.join(rng.choices(WORDS, k=num_words))} tree."


def write_library(folder: Path, library: str, num_modules: int) -> None:
    """Write modules with one documented function each; every tenth repeats the docstring of the first."""
    folder.mkdir()
    for number in range(num_modules):
        rng = random.Random(f"{library} {number if number % 10 else 0}")
        entries = "".join(
            f"    {name} : {name}_type, default: {name!r}\n        {sentence(rng, 20)}\n" for name in "abcde"
        )
        summary = f"{sentence(rng, 9)} {sentence(rng, 9)} Seen in every {library} module of all."
        source = f'def grow():\n    """{summary}\n\n    Parameters\n    ----------\n{entries}    """\n'
        (folder / f"module_{number}.py").write_text(source)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("libraries")
    for library in ("first", "second"):
        write_library(root / library, library, 60)
    (root / "first" / "broken.py").write_text("def (:")
    (root / "first" / "binary.py").write_bytes(b"\xff\x00")
    return {library: root / library for library in ("first", "second")}


@pytest.fixture(scope="module")
def out_dir(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out_dir = tmp_path_factory.mktemp("data")
    build(out_dir, folders=folders)
    return out_dir


def read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")


def read_paragraphs(path: Path) -> list[dict[str, Any]]:
    return [item for article in json.loads(path.read_text())["data"] for item in article["paragraphs"]]


def test_corpus_splits_share_no_long_sentence(out_dir: Path) -> None:
    """No sentence of more than five words is in train and dev, and no sentence occurs more than three times."""
    train, dev = (read_lines(out_dir / "corpus" / f"{split}.txt") for split in ("train", "dev"))
    known = {normalize(line) for line in train if line}

    assert any(dev)
    assert not [line for line in dev if len(line.split()) > 5 and normalize(line) in known]
    assert max(train.count(line) for line in train if line) == MAX_REPEATS


def test_labelled_texts_are_disjoint(out_dir: Path) -> None:
    """Texts of train and dev start with different words, and no text contains the name of its library."""
    train, dev = (
        [json.loads(line) for line in read_lines(out_dir / "classification" / f"{split}.jsonl") if line]
        for split in ("train", "dev")
    )
    openings = {" ".join(normalize(item["text"]).split()[:8]) for item in train}

    assert {item["label"] for item in train} == {"first", "second"}
    assert dev
    assert not [item for item in dev if " ".join(normalize(item["text"]).split()[:8]) in openings]
    assert not [item for item in train + dev if item["label"] in item["text"].split()]


def test_contexts_are_disjoint_and_answers_are_cut_from_them(out_dir: Path) -> None:
    """Each answer is at its stated position in the context; ids and contexts are unique."""
    found = [item for split in ("train", "dev") for item in read_paragraphs(out_dir / "spans" / f"{split}.json")]
    questions = [(item["context"], question) for item in found for question in item["qas"]]

    assert len({normalize(item["context"]) for item in found}) == len(found)
    assert len({question["id"] for _, question in questions}) == len(questions)
    for context, question in questions:
        answer = question["answers"][0]
        assert context[answer["answer_start"] :].startswith(answer["text"])
        name = question["question"].split("`")[1]
        assert answer["text"] == (f"{name}_type" if "type" in question["question"] else repr(name))


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read files in this process, which saves the start of others."""
    monkeypatch.setattr("recipes.demo.data.ProcessPoolExecutor", lambda *_: ThreadPoolExecutor(1))


@pytest.mark.usefixtures("in_process")
def test_same_files_twice(folders: dict[str, Path], out_dir: Path, tmp_path: Path) -> None:
    """The same sources and seed give the same bytes."""
    build(tmp_path, folders=folders)

    names = [path.relative_to(out_dir) for path in out_dir.rglob("*.*")]
    assert len(names) == 7
    assert all((tmp_path / name).read_bytes() == (out_dir / name).read_bytes() for name in names)


@pytest.mark.usefixtures("in_process")
def test_too_little_documentation_writes_nothing(tmp_path: Path) -> None:
    """If there is too little text for a file, the error names it and nothing is written."""
    write_library(tmp_path / "tiny", "tiny", 1)

    with pytest.raises(ValueError, match=r"too little documentation for `corpus/\w+.txt`"):
        build(tmp_path / "out", folders={"tiny": tmp_path / "tiny"})
    assert not list((tmp_path / "out").iterdir())


def module(name: str, docstrings: list[list[str]], library: str = "lib") -> Module:
    return Module(Source(library, name, Path(name)), [Docstring(name, "", found, []) for found in docstrings])


def name_in(split: str) -> str:
    return next(name for name in map("lib.m{}".format, range(1000)) if split_of(name, 0) == split)


def test_known_docstring_is_taken_out_of_dev() -> None:
    """A dev docstring that equals a train docstring is removed; its short sentences stay in other docstrings."""
    corpus = Corpus(0)
    known, other = ["Short words stay here.", "Add up all the given numbers."], ["add up all the given  numbers"]
    corpus.add(module(name_in("train"), [["Return the sum."], known]))
    corpus.add(module(name_in("dev"), [["Return the SUM."], [known[0], *other], ["It is new."]]))

    assert corpus.splits()["dev"] == []
    corpus.add(module(name_in("dev"), [["It is new.", "Another new sentence is in here."]]))
    assert corpus.splits()["dev"] == [["It is new.", "Another new sentence is in here."]]


def test_mask_names() -> None:
    """Names of libraries and their short forms are removed in any case; words that contain short forms stay."""
    text = "With NumPy (or np.mean) and PyTorch's torch.Tensor, use input in numpy."

    assert mask_names(text, ["numpy", "torch"]) == "With (or mean) and Tensor, use input in."


@given(st.lists(st.integers(1, 40).map(lambda count: " ".join(["word"] * count) + "."), max_size=8))
def test_excerpt_is_within_bounds(docstring: list[str]) -> None:
    """An excerpt has 15 to 60 words and ends with a whole sentence."""
    text = excerpt(docstring)

    if text is not None:
        assert 15 <= len(text.split()) <= 60
        assert text.endswith(".")


names = st.text("abcxyzäöü_", min_size=1, max_size=6)
parameters = st.builds(
    Parameter,
    st.lists(names, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["int", "{'ä', 'ö'}", "float → str"]),
    st.sampled_from(["1", "'ä'", "(1, 2)", "None", ""]),
    st.lists(st.integers(1, 50).map(lambda count: " ".join(["Größe"] * count) + "."), max_size=3).map(tuple),
)


@given(st.lists(parameters, min_size=2, max_size=12))
def test_spans_of_contexts(listed: list[Parameter]) -> None:
    """A context has 45 to 110 words, and each answer is the type or the default of its parameter."""
    docstring = Docstring("lib.f", "A summary 😀 of this function.", [], listed)

    for context in contexts(docstring):
        assert 45 <= len(context.text.split()) <= 110
        for (name, what), (start, end) in context.answers.items():
            found = [getattr(item, what) for item in listed if name in item.names]
            assert context.text[start:end] in found
            before = context.text[:start].rsplit(" : ", 1)[0]
            assert name in before.split(".")[-1]
