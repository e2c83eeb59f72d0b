"""Tests of data sets of the Hugging Face hub, with a stub and, if it is installed, with the library itself."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pyarrow.parquet
import pytest

from tasks.classification import ClassificationExample
from tasks.tagging import TaggingExample
from training.data.columns import Columns
from training.data.sources import source_digest
from training.data.table_examples import read_classification
from training.data.tagging import read_tagging


class Classes:
    """Stub of `datasets.ClassLabel`."""

    def __init__(self, *names):
        self.names = names

    def int2str(self, number):
        return self.names[number]


class Rows(list):
    features: ClassVar = {"label": Classes("negative", "positive")}


@pytest.fixture
def hub(monkeypatch):
    """Stub the library; return the recorded requests and the rows that it gives."""
    asked, rows = [], Rows()

    def load_dataset(name, config, *, split, revision):
        asked.append((name, config, split, revision))
        return rows

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return SimpleNamespace(asked=asked, rows=rows)


@pytest.mark.parametrize("prefix", ["hf:", "hf://"])
def test_numbers_of_classes_become_their_names(hub, prefix):
    """Class numbers become names, and id, configuration, split and revision reach the library."""
    hub.rows += [{"sentence": "a cat", "label": 1}, {"sentence": "a dog", "label": 0}]
    path = Path(f"{prefix}nyu-mll/glue,config=sst2,split=train[:2],revision=abc")

    found = read_classification(path, Columns(text="sentence"))

    assert found == [ClassificationExample("a cat", None, "positive"), ClassificationExample("a dog", None, "negative")]
    assert hub.asked == [("nyu-mll/glue", "sst2", "train[:2]", "abc")]
    digest = source_digest(path)
    hub.rows[0]["label"] = 0
    assert source_digest(path) != digest


def test_unknown_labels_are_named(hub):
    """The error names a row with label -1, as in test splits of GLUE."""
    hub.rows += [{"text": "a cat", "label": 1}, {"text": "a cat", "label": -1}]

    with pytest.raises(ValueError, match=r"`hf:x,split=test`, row 2: `label` is empty"):
        read_classification(Path("hf:x,split=test"), Columns())


@pytest.mark.parametrize("source", ["hf:glue", "hf:glue,sst2,split=train"])
def test_malformed_names_are_refused(source):
    """The error gives the expected form of a source."""
    with pytest.raises(ValueError, match=rf"cannot read `{source}`; expected hf:ID,split=NAME"):
        read_classification(Path(source), Columns())


def test_a_missing_library_is_named(monkeypatch):
    """A missing library is an error with the command to install it."""
    monkeypatch.setitem(sys.modules, "datasets", None)

    with pytest.raises(ValueError, match="needs the library `datasets`: python -m pip install --group hub"):
        read_classification(Path("hf:glue,split=train"), Columns())


@pytest.mark.filterwarnings("ignore")  # raised by the library
def test_the_library_itself_reads_a_folder(tmp_path, monkeypatch):
    """The library reads a folder with a Parquet file, which names its classes."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    tags = datasets.ClassLabel(names=["O", "B-LOC"])
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    features |= {"tokens": datasets.List(datasets.Value("string")), "tags": datasets.List(tags)}
    row = {"text": "a cat", "label": 1, "tokens": ["in", "Rome"], "tags": [0, 1]}
    table = pyarrow.Table.from_pylist([row], schema=datasets.Features(features).arrow_schema)
    pyarrow.parquet.write_table(table, tmp_path / "folder" / "train.parquet")
    path = Path("hf:folder,split=train")

    assert read_classification(path, Columns()) == [ClassificationExample("a cat", None, "yes")]
    assert read_tagging(path, Columns()) == [TaggingExample(("in", "Rome"), ("O", "B-LOC"))]
