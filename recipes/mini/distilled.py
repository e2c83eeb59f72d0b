"""Distilled models, which are shipped: data, teacher, student and settings of each.

Training of the shipped ones ended after some minutes on a GPU; the epochs here are those that they had by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recipes.mini.tasks import WINDOWS, ScoredTask

STUDENT = "bertline-small"
"""Pretrained network that all students start from: 6 layers with hidden size 384."""
TEACHER = "mpnet"
"""Sentence model that teaches vectors, and that the other teachers start from (`recipes.mini.teachers`)."""
TEACHER_SUFFIX = "-teacher"
"""End of the names of teachers."""
EMBED = "embed"
_THREE = "--take-layers 0 1 2"


@dataclass(frozen=True, kw_only=True)
class DistilledTask(ScoredTask):
    """A task whose model is distilled; its name is that of the served model."""

    unlabelled: Sequence[str] = ()
    """Data that the teacher alone labels."""
    data_name: str
    """Name of the data of its scores."""
    teacher_flags: str = ""
    """Flags of fine-tuning the teacher; empty if it is used as it is."""
    flags: str
    """Flags of distillation."""
    scored_on: str | None = None
    """Dev data for the graph and the scores; None for `dev`."""
    export_flags: str = ""
    """Flags that change the settings of the served model."""

    @property
    def teacher(self) -> str | None:
        """Name of the teacher that is fine-tuned for it; None if the sentence model teaches it."""
        return f"{self.name}{TEACHER_SUFFIX}" if self.teacher_flags else None


_TEXTS = ["{made}/reviews.txt", "{made}/sentences-part.txt"]

DISTILLED = (
    DistilledTask(
        name=EMBED,
        title="Vectors of texts",
        kind="embedding",
        train=["{made}/sentences.txt", "{made}/paragraphs.txt", "{made}/reviews.txt", "{made}/questions.jsonl"],
        dev="{data}/glue/STS-B/dev.tsv.xz",
        metric="spearman",
        data_name="STS-B",
        flags="--dev-columns.text sentence1 --dev-columns.text-pair sentence2 --dev-columns.label score "
        "--pooling mean --train-seq-length 192 --global-batch-size 512 --learning-rate 1e-3 --num-epochs 4.2 "
        "--dimensions 128 --eval-every 1000",
    ),
    DistilledTask(
        name="answer",
        title="Answers, SQuAD",
        kind="spans",
        train=["{made}/squad-v2.json"],
        unlabelled=["{made}/cloze-part.json"],
        dev="{data}/squad/dev-v2.0-part.json.xz",
        metric="f1",
        data_name="SQuAD v1.1",
        teacher_flags=f"{WINDOWS} --num-epochs 0.83 --learning-rate 5e-5 --null-threshold auto",
        flags=f"{WINDOWS} --num-epochs 3.5 --learning-rate 5e-4 --global-batch-size 128 --micro-batch-size 128 "
        "--dropout 0.1 --null-threshold auto",
        scored_on="{data}/squad/dev-v1.1-part.json.xz",
        export_flags="--no-unanswerable",
    ),
    DistilledTask(
        name="sentiment",
        title="Sentiment, SST-2",
        kind="classification",
        train=["{made}/sst-2/train.jsonl"],
        unlabelled=_TEXTS,
        dev="{made}/sst-2/dev.jsonl",
        test="{made}/sst-2/test.jsonl",
        metric="accuracy",
        data_name="SST-2",
        teacher_flags="--max-seq-length 64 --num-epochs 0.69 --learning-rate 3e-5",
        flags=f"{_THREE} --max-seq-length 64 --num-epochs 2.9 --learning-rate 5e-4 --global-batch-size 128 "
        "--micro-batch-size 128 --dropout 0.1",
    ),
    DistilledTask(
        name="topic",
        title="Topic, AG News (13,462 of 120,000)",
        kind="classification",
        train=["{data}/topic/ag_news-subset/train.tsv.xz"],
        dev="{data}/topic/ag_news-subset/dev.tsv.xz",
        test="{made}/ag-news/test.jsonl",
        metric="accuracy",
        data_name="AG News",
        teacher_flags="--num-epochs 3 --learning-rate 3e-5",
        flags=f"{_THREE} --num-epochs 6 --learning-rate 5e-4 --global-batch-size 128 --micro-batch-size 128 "
        "--dropout 0.1",
    ),
    DistilledTask(
        name="tag",
        title="Names, WikiANN and WNUT-17",
        kind="tagging",
        train=["{data}/ner/wikiann-en/train.conll.xz", "{made}/names/wnut17.conll"],
        unlabelled=_TEXTS,
        dev="{data}/ner/wikiann-en/dev.conll.xz",
        test="{data}/ner/wikiann-en/test.conll.xz",
        metric="f1",
        data_name="WikiANN",
        teacher_flags="--num-epochs 1.9 --learning-rate 5e-5",
        flags=f"{_THREE} --num-epochs 3 --learning-rate 5e-4 --global-batch-size 128 --micro-batch-size 128 "
        "--dropout 0.1",
    ),
)
"""Models that are shipped."""
