"""Rows and columns of tables 5, 6 and 8 and of figure 5 of the BERT paper (sections 5 and C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from recipes.ablations.scales import Scale
from training.data.columns import Columns

TaskName = Literal["SST-2", "MRPC", "RTE", "SQuAD", "NER"]
TableName = Literal["5", "6", "8", "steps"]


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Data to fine-tune on; file patterns in the data folder, without .xz and .gz."""

    task: str
    train: str
    dev: str
    metric: str
    num_epochs: float
    columns: Columns = field(default_factory=Columns)


def _glue(name: str, num_epochs: float, columns: Columns) -> LabelledData:
    train, dev = (f"glue/{name}/{split}.tsv" for split in ("train", "dev"))
    return LabelledData(
        task="classification", train=train, dev=dev, metric="accuracy", num_epochs=num_epochs, columns=columns
    )


_PAIRS = Columns(text="sentence1", text_pair="sentence2")
LABELLED_DATA: dict[TaskName, LabelledData] = {
    "SST-2": _glue("SST-2", 1, Columns(text="sentence")),
    "MRPC": _glue("MRPC", 3, _PAIRS),
    "RTE": _glue("RTE", 3, _PAIRS),
    "SQuAD": LabelledData(
        task="spans", train="squad/train-v1.1*.json", dev="squad/dev-v1.1*.json", metric="f1", num_epochs=2
    ),
    "NER": LabelledData(
        task="tagging", train="ner/wnut17/train.conll", dev="ner/wnut17/dev.conll", metric="f1", num_epochs=5
    ),
}


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """A pretraining run."""

    name: str
    """Name of the run directory."""
    changes: Mapping[str, Any]
    """Fields of the recipe that differ from the scale's."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a table."""

    label: str
    pretraining: Pretraining
    from_scratch: bool = False
    """True to use only the shape of the pretrained network, with random weights."""
    bilstm: bool = False
    group: str = ""
    """Curve that has the row as a point."""
    position: float = 0.0
    """Position on the curve, in steps."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """Score that compares rows."""

    label: str
    task: TaskName
    feature_based: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """A comparison."""

    name: TableName
    title: str
    rows: Sequence[Row]
    columns: Sequence[Column]

    @property
    def paper_name(self) -> str:
        """Name in the paper."""
        return "Figure 5" if self.name == "steps" else f"Table {self.name}"


BERT = Pretraining(name="bert", changes={})
_LEFT_TO_RIGHT = Pretraining(name="left-to-right", changes={"next_sentences": False, "direction": "left-to-right"})
UNPRETRAINED = Row(label="not pretrained", pretraining=BERT, from_scratch=True)
_TASKS: dict[TableName, tuple[TaskName, ...]] = {
    "5": ("SST-2", "MRPC", "RTE", "SQuAD", "NER"),
    "6": ("SST-2", "MRPC", "NER"),
    "8": ("SST-2", "NER"),
    "steps": ("SST-2", "NER"),
}
"""Tasks of each table."""


def make_table(name: TableName, scale: Scale, tasks: Sequence[TaskName]) -> Table:
    """Create a table.

    Args:
        tasks: tasks with data.

    Raises:
        ValueError: if the table has none of the tasks.
    """
    columns = [Column(label=task, task=task) for task in _TASKS[name] if task in tasks]
    if not columns:
        raise ValueError(f"table {name} has no column among {', '.join(tasks)}; its tasks: {', '.join(_TASKS[name])}")
    if name == "8" and "NER" in tasks:
        columns.append(Column(label="NER, feature-based", task="NER", feature_based=True))
    title, rows = {"5": _pretraining_tasks, "6": _sizes, "8": _maskings, "steps": _numbers_of_steps}[name](scale)
    return Table(name=name, title=title, rows=rows, columns=columns)


def _pretraining_tasks(scale: Scale) -> tuple[str, list[Row]]:
    """Create table 5, and a row for two stacks of layers as in ELMo."""
    no_nsp = Pretraining(name="no-nsp", changes={"next_sentences": False})
    both = Pretraining(name="concatenated", changes={"next_sentences": False, "direction": "concatenated"})
    return "pretraining tasks", [
        Row(label="masked LM and NSP (BERT)", pretraining=BERT),
        Row(label="no NSP", pretraining=no_nsp),
        Row(label="left-to-right, no NSP", pretraining=_LEFT_TO_RIGHT),
        Row(label="left-to-right, no NSP, + BiLSTM", pretraining=_LEFT_TO_RIGHT, bilstm=True),
        Row(label="left-to-right and right-to-left, no NSP", pretraining=both),
        UNPRETRAINED,
    ]


def _sizes(scale: Scale) -> tuple[str, list[Row]]:
    """Create table 6."""
    rows = []
    for shape in scale.shapes:
        fields = dict(zip(("num_hidden_layers", "hidden_size", "num_attention_heads"), shape, strict=True))
        label = " ".join(f"{letter}{size}" for letter, size in zip("LHA", shape, strict=True))
        pretraining = BERT if shape == scale.shape else Pretraining(name=label.replace(" ", "-"), changes=fields)
        rows.append(Row(label=label, pretraining=pretraining))
    return "model size", [*rows, UNPRETRAINED]


def _maskings(scale: Scale) -> tuple[str, list[Row]]:
    """Create table 8: fractions of predicted tokens that become [MASK], stay, or become a random token."""
    rows = []
    for mask, same, random in ((80, 10, 10), (100, 0, 0), (80, 0, 20), (80, 20, 0), (0, 20, 80), (0, 0, 100)):
        changes = {"mask_fraction": mask / 100, "random_fraction": random / 100}
        name = f"mask{mask}-same{same}-random{random}"
        pretraining = BERT if (mask, random) == (80, 10) else Pretraining(name=name, changes=changes)
        rows.append(Row(label=f"{mask}/{same}/{random}", pretraining=pretraining))
    return "masking, percent of [MASK]/same/random", [*rows, UNPRETRAINED]


def _numbers_of_steps(scale: Scale) -> tuple[str, list[Row]]:
    """Create figure 5. Each point is a separate run, whose learning rate falls to 0, not an intermediate state."""
    rows = []
    for group, whole in (("masked LM (BERT)", BERT), ("left-to-right", _LEFT_TO_RIGHT)):
        rows.append(Row(label=f"{group}, 0", pretraining=whole, from_scratch=True, group=group))
        for part in (8, 4, 2, 1):
            steps = max(1, scale.pretraining["num_steps"] // part)
            short = Pretraining(name=f"{whole.name}-steps{steps}", changes={**whole.changes, "num_steps": steps})
            pretraining = whole if part == 1 else short
            rows.append(Row(label=f"{group}, {steps:,}", pretraining=pretraining, group=group, position=steps))
    return "pretraining steps", rows
