"""Tasks that bertline-mini is fine-tuned for: data and settings. The shipped models are in `recipes.mini.distilled`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CLOZE = "cloze"
"""Synthetic cloze questions: they teach attention across two texts, which pretraining on single texts does not."""


@dataclass(frozen=True, kw_only=True)
class ScoredTask:
    """A task. Files with `{data}` are used as published, files with `{made}` come from `recipes.mini.data`."""

    name: str
    """Name of its run directory."""
    title: str
    kind: str
    """Task of `training.finetune`."""
    train: Sequence[str]
    dev: str
    test: str | None = None
    """Test data, read once after all choices."""
    metric: str
    """Main score."""


@dataclass(frozen=True, kw_only=True)
class MiniTask(ScoredTask):
    """A task that bertline-mini is fine-tuned for, with several seeds."""

    learning_rates: Sequence[float]
    epochs: float
    seeds: Sequence[int] = (0, 1, 2)
    flags: str = ""
    after: str | None = None
    """Checkpoint to start from instead of the pretrained one: the best of another task, or `CLOZE`."""


_GLUE_PAIR = "--columns.text sentence1 --columns.text-pair sentence2"
WINDOWS = "--max-seq-length 256 --doc-stride 96"

TASKS = (
    MiniTask(
        name="sst-2",
        title="SST-2, sentiment",
        kind="classification",
        train=["{made}/sst-2/train.jsonl"],
        dev="{made}/sst-2/dev.jsonl",
        test="{made}/sst-2/test.jsonl",
        metric="accuracy",
        learning_rates=(3e-4,),
        epochs=2,
        flags="--max-seq-length 64",
    ),
    MiniTask(
        name="cola",
        title="CoLA, acceptability",
        kind="classification",
        train=["{data}/glue/CoLA/train.tsv.xz"],
        dev="{data}/glue/CoLA/dev.tsv.xz",
        metric="matthews",
        learning_rates=(3e-4,),
        epochs=5,
        seeds=range(8),
        flags="--columns.text sentence --max-seq-length 64",
    ),
    MiniTask(
        name="mrpc",
        title="MRPC, paraphrase",
        kind="classification",
        train=["{data}/glue/MRPC/train.tsv.xz"],
        dev="{data}/glue/MRPC/dev.tsv.xz",
        metric="f1_1",
        learning_rates=(1e-4, 3e-4),
        epochs=5,
        flags=_GLUE_PAIR,
        after=CLOZE,
    ),
    MiniTask(
        name="sts-b",
        title="STS-B, similarity",
        kind="regression",
        train=["{data}/glue/STS-B/train.tsv.xz"],
        dev="{data}/glue/STS-B/dev.tsv.xz",
        metric="spearman",
        learning_rates=(1e-4, 3e-4),
        epochs=5,
        flags=f"{_GLUE_PAIR} --columns.label score",
        after=CLOZE,
    ),
    MiniTask(
        name="rte",
        title="RTE, entailment",
        kind="classification",
        train=["{data}/glue/RTE/train.tsv.xz"],
        dev="{data}/glue/RTE/dev.tsv.xz",
        metric="accuracy",
        learning_rates=(1e-4, 3e-4),
        epochs=5,
        flags=_GLUE_PAIR,
        after=CLOZE,
    ),
    MiniTask(
        name="trec-6",
        title="TREC-6, kind of question",
        kind="classification",
        train=["{made}/trec-6/train.jsonl"],
        dev="{made}/trec-6/dev.jsonl",
        test="{data}/topic/trec-6/test.tsv.xz",
        metric="accuracy",
        learning_rates=(3e-4,),
        epochs=5,
        flags="--max-seq-length 64",
    ),
    MiniTask(
        name="ag-news",
        title="AG News (13,462 of 120,000), topic",
        kind="classification",
        train=["{data}/topic/ag_news-subset/train.tsv.xz"],
        dev="{data}/topic/ag_news-subset/dev.tsv.xz",
        test="{made}/ag-news/test.jsonl",
        metric="accuracy",
        learning_rates=(3e-4,),
        epochs=3,
    ),
    MiniTask(
        name="squad-v1",
        title="SQuAD v1.1 (32,727 other questions)",
        kind="spans",
        train=["{made}/squad-v1.json"],
        dev="{data}/squad/dev-v1.1-part.json.xz",
        metric="f1",
        learning_rates=(5e-4,),
        epochs=2,
        seeds=(0,),
        flags=WINDOWS,
        after=CLOZE,
    ),
    MiniTask(
        name="squad-v2",
        title="SQuAD v2.0 (the same, and made-up unanswerable ones)",
        kind="spans",
        train=["{made}/squad-v2.json"],
        dev="{data}/squad/dev-v2.0-part.json.xz",
        metric="f1",
        learning_rates=(5e-4,),
        epochs=0.3,
        seeds=(0,),
        flags=f"{WINDOWS} --null-threshold auto",
        after="squad-v1",
    ),
    MiniTask(
        name="wnut-17",
        title="WNUT-17, names in noisy text",
        kind="tagging",
        train=["{data}/ner/wnut17/train.conll.xz"],
        dev="{data}/ner/wnut17/dev.conll.xz",
        test="{data}/ner/wnut17/test.conll.xz",
        metric="f1",
        learning_rates=(5e-4,),
        epochs=5,
    ),
    MiniTask(
        name="wikiann",
        title="WikiANN, names in titles and sentences",
        kind="tagging",
        train=["{data}/ner/wikiann-en/train.conll.xz"],
        dev="{data}/ner/wikiann-en/dev.conll.xz",
        test="{data}/ner/wikiann-en/test.conll.xz",
        metric="f1",
        learning_rates=(7e-4,),
        epochs=5,
    ),
    MiniTask(
        name="codah",
        title="CODAH, completion of four",
        kind="multiple-choice",
        train=["{data}/multiple_choice/codah/train.jsonl.xz"],
        dev="{data}/multiple_choice/codah/dev.jsonl.xz",
        test="{data}/multiple_choice/codah/test.jsonl.xz",
        metric="accuracy",
        learning_rates=(3e-4,),
        epochs=5,
        flags="--max-seq-length 64",
    ),
    MiniTask(
        name="commonsenseqa",
        title="CommonsenseQA 1.0, answer of three",
        kind="multiple-choice",
        train=["{data}/multiple_choice/commonsenseqa-1.0/train.jsonl.xz"],
        dev="{data}/multiple_choice/commonsenseqa-1.0/dev.jsonl.xz",
        metric="accuracy",
        learning_rates=(3e-4,),
        epochs=3,
        seeds=(0, 1),
        flags="--max-seq-length 64",
    ),
)
