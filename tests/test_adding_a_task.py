"""Tests of the list "Adding a task" in CONTRIBUTING.md: it names every file that names tasks."""

import ast
import re
from pathlib import Path
from typing import get_args

import pytest

from tasks import TASKS
from tasks.registry import LabelledTask, TaskName

ROOT = Path(__file__).parents[1]
PACKAGES = ("tasks", "training", "export", "serving", "clients/bertline")
MOST_FILES = 10

ONE_TASK = (
    *("tasks/", "serving/endpoints/", "training/objectives/", "training/data/"),
    "clients/bertline/operations/",
    "training/model/architectures/",  # names of the task's head in a family
)
"""Paths of code for one task, such as readers of one format and baselines."""
SPECIAL = {
    "embedding": {
        "clients/bertline/integrations/_steps.py",
        "clients/bertline/integrations/mteb.py",
        "clients/bertline/integrations/sentence_transformers.py",
        "export/agreement.py",  # neighbours of vectors
        "export/card.py",  # sentence-transformers model, for the hub
        "export/evaluation_set.py",  # texts without labels
        "export/html_report.py",  # neighbours of texts
        "export/interop.py",
        "export/network.py",  # width of vectors
        "export/optimum_export/exporter.py",  # pooling and layers after it
        "export/package.py",  # size of vectors
        "export/pipeline.py",  # formats of vectors
        "export/quality.py",
        "export/quality_gate.py",  # compares cosines
        "export/source.py",
        "training/checkpoint/reader.py",  # needs no head
        "training/checkpoint/task_inference.py",  # pooling of foreign checkpoints
        "training/contrastive.py",
        "training/distill.py",  # a separate recipe
        "training/distillation/teachers.py",
        "training/distillation/vectors.py",
        "serving/http_api/openai.py",  # OpenAI's route for embeddings
        "training/finetuning/embedding_run.py",
        "training/checkpoint/evaluation.py",
        "training/report.py",
        "training/checkpoint/writer.py",  # the modules of sentence-transformers
        "training/reports/samples.py",
        "training/checkpoint/sentence_transformers.py",
        "training/checkpoint/sentence_transformers_writer.py",
    },
    "spans": {
        "clients/bertline/_models.py",  # ranks documents
        "training/checkpoint/task_inference.py",  # lengths of foreign checkpoints
        "training/distillation/tasks.py",  # teachers without "no answer"
        "training/finetuning/data.py",
        "training/finetuning/scores.py",  # the null threshold
        "training/reports/samples.py",
    },
    "classification": {
        "clients/bertline/_models.py",  # ranks documents
        "export/interop.py",  # labels and kind for other libraries
        "export/thresholds.py",
        "serving/http_api/tei.py",  # routes that TEI names after what they do
        "training/checkpoint/task_inference.py",  # Hugging Face has one class for classification and regression
        "training/distillation/tasks.py",  # thresholds
        "training/checkpoint/writer.py",  # the problem type
        "training/reports/samples.py",
    },
    "regression": {
        "clients/bertline/_models.py",  # ranks documents
        "export/evaluation_set.py",
        "export/interop.py",  # the function for other libraries
        "serving/http_api/tei.py",  # routes that TEI names after what they do
        "training/checkpoint/activation.py",  # cross-encoders
        "training/checkpoint/task_inference.py",
        "training/checkpoint/writer.py",
        "training/contrastive.py",  # pairs with a similarity
        "training/distillation/tasks.py",  # the unit of a teacher's numbers
        "training/distillation/vectors.py",  # pairs with a similarity
        "training/finetuning/embedding_run.py",
        "training/reports/samples.py",
    },
    "tagging": {"training/distillation/tasks.py"},  # windows
    "multiple-choice": set(),
    "masked-lm": {
        "training/model/run.py",  # smaller chunks
        "export/network.py",  # reuses the word-embedding matrix
        "export/parity.py",
        "export/quality_gate.py",
        "training/checkpoint/reader.py",
        "training/evaluate.py",
        "training/pretrain.py",
        "training/report.py",
        "training/reports/model_card.py",
        "training/reports/samples.py",
    },
    "token-embedding": {
        "clients/bertline/_models.py",  # ranks documents
        "export/agreement.py",  # no predictions
        "export/package.py",  # size of vectors
        "export/quality_gate.py",  # compares cosines
        "export/source.py",  # layers
        "training/checkpoint/task_inference.py",  # modules of PyLate, and query expansion
        "training/checkpoint/sentence_transformers.py",
    },
    "sparse-embedding": {
        "export/agreement.py",  # no predictions
        "export/quality_gate.py",  # compares cosines
        "export/source.py",
        "training/checkpoint/task_inference.py",  # modules of sentence-transformers
        "training/checkpoint/sentence_transformers.py",
    },
}
"""Files that treat one task differently from all others. A new task needs no entry."""


@pytest.fixture(scope="module")
def listed_paths():
    """Return the paths in the section of CONTRIBUTING.md: those of the numbered list, and all."""
    section = re.search(r"## Adding a task\n(.*?)\n## ", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[1]
    needed = re.findall(r"^\d+\. `([^`]+)`", section, re.MULTILINE)
    return needed, needed + re.findall(r"`([^`]+\.py)`", section)


@pytest.fixture(scope="module")
def files_by_task():
    """Return the files that contain a task's name as a string or import its module, by task."""
    modules = {task.__module__: name for name, task in TASKS.items()}
    found = {name: set() for name in TASKS}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in TASKS:
                found[node.value].add(path.relative_to(ROOT).as_posix())
            elif isinstance(node, ast.ImportFrom) and node.module in modules:
                found[modules[node.module]].add(path.relative_to(ROOT).as_posix())
    return found


def test_a_task_touches_at_most_ten_files(listed_paths):
    """The numbered list has at most ten files, and every listed file exists."""
    needed, all_paths = listed_paths

    assert 0 < len(needed) <= MOST_FILES
    for path in all_paths:
        assert any(ROOT.glob(re.sub("<[a-z]+>", "*", path))), path


@pytest.mark.parametrize("task", TASKS)
def test_every_file_that_names_a_task_is_listed(listed_paths, files_by_task, task):
    """Every file outside the list that names a task is known to treat this task differently."""
    others = {path for path in files_by_task[task] - {*listed_paths[1]} if not path.startswith(ONE_TASK)}

    assert others == SPECIAL[task]


def test_listed_tables_name_every_task(listed_paths, files_by_task):
    """Every table in the list names every labelled task."""
    tables = [
        path for path in listed_paths[0] if re.fullmatch(r"[a-z_/]+\.py", path) and not path.endswith("__init__.py")
    ]

    assert len(tables) >= 4
    for path in tables:
        assert {name for name in TASKS if path in files_by_task[name]} >= {*get_args(LabelledTask)}, path


def test_names_of_tasks_agree():
    """The types of recipes and flags have the registry's task names."""
    names = {name for part in get_args(TaskName) for name in (get_args(part) or (part,))}

    assert names == TASKS.keys() > {*get_args(LabelledTask)}
