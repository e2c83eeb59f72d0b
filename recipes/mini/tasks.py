"""Tasks of bertline-mini, which are fine-tuned, and of the shipped models, which are distilled: data and settings.

Commands and files are patterns. `{data}` stands for the folder of the published data, `{made}` for the results of
`recipes.mini.data`, `{out}` for the folder of all results, and `{pretrained}` and `{student}` for the checkpoints that
networks start from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

CLOZE = "cloze"
"""Synthetic cloze questions: they teach attention across two texts, which pretraining on single texts does not."""
CLOZE_QUESTIONS = "{made}/cloze.json"
STUDENT = "bertline-small"
"""Pretrained network that most students start from: 6 layers with hidden size 384."""
TEACHERS = "{out}/teachers"
"""Folder of the models that teach, which `recipes.mini.teachers` installs."""
MPNET, MINILM, CROSS_ENCODER = "mpnet", "minilm", "cross-encoder"
"""Teachers: mpnet, after fine-tuning, of labels, answers and tags; the others are what students start from."""
TRIMMED = "{out}/trimmed"
"""Folder of teachers with a third of their vocabulary, which students start from (`recipes.mini.trim`)."""
SEARCH = "{made}/search"
"""Folder of the data of the model that ranks (`recipes.mini.search`)."""
TEACHER_SUFFIX = "-teacher"
"""End of the names of teachers."""
FIRST_SUFFIX = "-first"
"""End of the names of networks that the main training starts from."""
EMBED = "embed"


@dataclass(frozen=True)
class Training:
    """Training of one network."""

    title: str
    start: str
    """Checkpoint that it starts from."""
    command: str
    """Arguments of `python -m`."""
    files: tuple[str, ...]
    """Files that it is trained and scored on."""


@dataclass(frozen=True, kw_only=True)
class ScoredTask:
    """A task."""

    name: str
    """Name of its run directory and, for a shipped model, of the served model."""
    title: str
    kind: str = "classification"
    """Task of `training.finetune`."""
    train: Sequence[str]
    dev: str
    test: str | None = None
    """Test data, read once after all choices."""
    metric: str = "accuracy"
    """Main score."""
    flags: str = ""
    """Flags of fine-tuning, or of distillation."""


@dataclass(frozen=True, kw_only=True)
class MiniTask(ScoredTask):
    """A task that bertline-mini is fine-tuned for, with several seeds."""

    learning_rates: Sequence[float] = (3e-4,)
    epochs: float = 5
    seeds: Sequence[int] = (0, 1, 2)
    after: str | None = None
    """Network to start from instead of the pretrained one: the best of another task, or `CLOZE`."""

    def trainings(self) -> dict[str, Training]:
        """Return the networks to train after pretraining, in order."""
        start = f"{{out}}/{self.after}/checkpoint" if self.after else "{pretrained}"
        rates, seeds = (" ".join(map(str, values)) for values in (self.learning_rates, self.seeds))
        command = (
            f"training.grid {self.kind} --checkpoint {start} --train {' '.join(self.train)} --dev {self.dev} "
            f"--run-dir {{out}}/{self.name} --metric {self.metric} --learning-rates {rates} --epochs {self.epochs:g} "
            f"--seeds {seeds} --checkpoint-every 0 --dropout 0.1 {self.flags}"
        )
        files = (*self.train, *filter(None, (self.dev, self.test)))
        own = {self.name: Training(f"Fine-tuning: {self.title}", start, command.strip(), files)}
        if self.after == CLOZE:
            return {CLOZE: cloze_training()} | own
        return {**(task_of(self.after).trainings() if self.after else {}), **own}


def cloze_training() -> Training:
    """Return the training on synthetic cloze questions."""
    dev = next(task.dev for task in TASKS if task.after == CLOZE and task.kind == "spans")
    command = (
        f"training.finetune spans --checkpoint {{pretrained}} --train {CLOZE_QUESTIONS} --dev {dev} "
        f"--run-dir {{out}}/{CLOZE} {WINDOWS} --num-epochs 1 --learning-rate 5e-4 --dropout 0"
    )
    return Training("Synthetic cloze questions", "{pretrained}", command, (CLOZE_QUESTIONS, dev))


@dataclass(frozen=True, kw_only=True)
class DistilledTask(ScoredTask):
    """A task whose model starts from a teacher or learns from one, and is shipped."""

    unlabelled: Sequence[str] = ()
    """Data that the teacher alone labels."""
    data_name: str
    """Name of the data of its scores."""
    teacher: str = MPNET
    """Teacher, or what it starts from."""
    is_trimmed: bool = False
    """True if the student starts from its teacher's weights, with fewer tokens, instead of the pretrained network."""
    learns_labels: bool = True
    """False if the teacher alone labels all data."""
    method: Literal["distill", "contrastive", "finetune"] = "distill"
    """Program that trains it: on the teacher's outputs, on pairs of texts, or on labels."""
    teacher_flags: str = ""
    """Flags of fine-tuning the teacher; empty if it teaches as it is."""
    first_flags: str = ""
    """Flags of a training before the main one, on the same data; empty for none."""

    def trainings(self) -> dict[str, Training]:
        """Return the networks to train after pretraining, in order."""
        name, installed = f"{self.name}{TEACHER_SUFFIX}", f"{TEACHERS}/{self.teacher}"
        train, unlabelled = " ".join(self.train), " ".join(self.unlabelled)
        more = f" --unlabelled {unlabelled}" if unlabelled else ""
        data = f"--{'train' if self.learns_labels else 'unlabelled'} {train}{more} --dev {self.dev}"
        files = (*self.train, *self.unlabelled, *filter(None, (self.dev, self.test)))
        teacher = f"{{out}}/{name}/checkpoint" if self.teacher_flags else installed
        title, program = {
            "distill": ("Distillation", f"distill {self.kind} --teacher {teacher}"),
            "contrastive": ("Pairs", "contrastive supervised"),
            "finetune": ("Fine-tuning", f"finetune {self.kind}"),
        }[self.method]
        made: dict[str, Training] = {}

        def add(name: str, title: str, program: str, start: str, data: str, flags: str) -> str:
            command = (
                f"training.{program} --checkpoint {start} {data} --run-dir {{out}}/{name} --checkpoint-every 0 {flags}"
            )
            made[name] = Training(title, start, command, files)
            return f"{{out}}/{name}/checkpoint"

        if self.teacher_flags:
            alone = f"--train {train} --dev {self.dev}"
            add(name, f"Teacher: {self.title}", f"finetune {self.kind}", installed, alone, self.teacher_flags)
        start = self.start
        if self.first_flags:
            start = add(
                f"{self.name}{FIRST_SUFFIX}", f"{title}, first: {self.title}", program, start, data, self.first_flags
            )
        add(self.name, f"{title}: {self.title}", program, start, data, self.flags)
        return made

    @property
    def start(self) -> str:
        """Checkpoint that the student starts from."""
        return f"{TRIMMED}/{self.teacher}" if self.is_trimmed else "{student}"


def all_tasks() -> Sequence[MiniTask | DistilledTask]:
    """Return all tasks, fine-tuned and distilled."""
    return [*TASKS, *DISTILLED]


def task_of(name: str) -> MiniTask | DistilledTask:
    """Return a task by name."""
    return next(task for task in all_tasks() if task.name == name)


def task_names() -> list[str]:
    """Return the names of all tasks."""
    return [task.name for task in all_tasks()]


def is_distilled(name: str) -> bool:
    """Return whether a network is that of a distilled task."""
    return any(task.name == name for task in DISTILLED)


def all_trainings() -> dict[str, Training]:
    """Return every training by the name of its network."""
    return {name: found for task in all_tasks() for name, found in task.trainings().items()}


_GLUE_PAIR = "--columns.text sentence1 --columns.text-pair sentence2"
_SHORT = "--max-seq-length 64"
WINDOWS = "--max-seq-length 256 --doc-stride 96"


def _splits(pattern: str, *, has_test: bool = False) -> dict[str, Any]:
    train, dev, test = (pattern.replace("SPLIT", split) for split in ("train", "dev", "test"))
    return {"train": [train], "dev": dev} | ({"test": test} if has_test else {})


TASKS: tuple[MiniTask, ...] = (
    MiniTask(
        name="sst-2",
        title="SST-2, sentiment",
        **_splits("{made}/sst-2/SPLIT.jsonl", has_test=True),
        epochs=2,
        flags=_SHORT,
    ),
    MiniTask(
        name="cola",
        title="CoLA, acceptability",
        **_splits("{data}/glue/CoLA/SPLIT.tsv.xz"),
        metric="matthews",
        seeds=range(8),
        flags=f"--columns.text sentence {_SHORT}",
    ),
    MiniTask(
        name="mrpc",
        title="MRPC, paraphrase",
        **_splits("{data}/glue/MRPC/SPLIT.tsv.xz"),
        metric="f1_1",
        learning_rates=(1e-4, 3e-4),
        flags=_GLUE_PAIR,
        after=CLOZE,
    ),
    MiniTask(
        name="sts-b",
        title="STS-B, similarity",
        kind="regression",
        **_splits("{data}/glue/STS-B/SPLIT.tsv.xz"),
        metric="spearman",
        learning_rates=(1e-4, 3e-4),
        flags=f"{_GLUE_PAIR} --columns.label score",
        after=CLOZE,
    ),
    MiniTask(
        name="rte",
        title="RTE, entailment",
        **_splits("{data}/glue/RTE/SPLIT.tsv.xz"),
        learning_rates=(1e-4, 3e-4),
        flags=_GLUE_PAIR,
        after=CLOZE,
    ),
    MiniTask(
        name="trec-6",
        title="TREC-6, kind of question",
        **_splits("{made}/trec-6/SPLIT.jsonl"),
        test="{data}/topic/trec-6/test.tsv.xz",
        flags=_SHORT,
    ),
    MiniTask(
        name="ag-news",
        title="AG News (13,462 of 120,000), topic",
        **_splits("{data}/topic/ag_news-subset/SPLIT.tsv.xz"),
        test="{made}/ag-news/test.jsonl",
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
        **_splits("{data}/ner/wnut17/SPLIT.conll.xz", has_test=True),
        metric="f1",
        learning_rates=(5e-4,),
    ),
    MiniTask(
        name="wikiann",
        title="WikiANN, names in titles and sentences",
        kind="tagging",
        **_splits("{data}/ner/wikiann-en/SPLIT.conll.xz", has_test=True),
        metric="f1",
        learning_rates=(7e-4,),
    ),
    MiniTask(
        name="codah",
        title="CODAH, completion of four",
        kind="multiple-choice",
        **_splits("{data}/multiple_choice/codah/SPLIT.jsonl.xz", has_test=True),
        flags=_SHORT,
    ),
    MiniTask(
        name="commonsenseqa",
        title="CommonsenseQA 1.0, answer of three",
        kind="multiple-choice",
        **_splits("{data}/multiple_choice/commonsenseqa-1.0/SPLIT.jsonl.xz"),
        epochs=3,
        seeds=(0, 1),
        flags=_SHORT,
    ),
)

_TEXTS = ["{made}/reviews.txt", "{made}/sentences-part.txt"]
_THREE = "--take-layers 0 1 2"
_BATCHES = "--global-batch-size 128 --micro-batch-size 128 --dropout 0.1"

DISTILLED: tuple[DistilledTask, ...] = (
    DistilledTask(
        name=EMBED,
        title="Vectors of texts",
        kind="embedding",
        teacher=MINILM,
        is_trimmed=True,
        method="contrastive",
        train=["{made}/questions.jsonl"],
        dev="{data}/glue/STS-B/dev.tsv.xz",
        metric="spearman",
        data_name="STS-B",
        flags="--dev-columns.text sentence1 --dev-columns.text-pair sentence2 --dev-columns.label score "
        "--loss infonce --train-seq-length 192 --global-batch-size 64 --learning-rate 2e-5 --num-epochs 0.3 "
        "--dropout 0",
    ),
    DistilledTask(
        name="rerank",
        title="Ranking of texts for a query",
        kind="regression",
        teacher=CROSS_ENCODER,
        is_trimmed=True,
        learns_labels=False,
        train=[f"{SEARCH}/pairs.jsonl"],
        dev=f"{SEARCH}/pairs-dev.jsonl",
        metric="spearman",
        data_name="queries with texts",
        flags="--take-layers 1 3 5 7 9 11 --max-seq-length 224 --learning-rate 1e-4 --num-epochs 1 "
        "--global-batch-size 64 --micro-batch-size 64 --dropout 0",
    ),
    DistilledTask(
        name="answer",
        title="Answers, SQuAD",
        kind="spans",
        teacher=MINILM,
        is_trimmed=True,
        method="finetune",
        train=["{made}/squad-changed.json"],
        dev="{data}/squad/dev-v2.0-part.json.xz",
        metric="f1",
        data_name="SQuAD v2.0",
        first_flags=f"{WINDOWS} --num-epochs 0.6 --learning-rate 2e-4 --dropout 0 --null-threshold auto",
        flags=f"{WINDOWS} --num-epochs 1 --learning-rate 1.5e-4 --dropout 0 --null-threshold auto --seed 1",
    ),
    DistilledTask(
        name="sentiment",
        title="Sentiment, SST-2",
        train=["{made}/sst-2/train.jsonl"],
        unlabelled=_TEXTS,
        dev="{made}/sst-2/dev.jsonl",
        test="{made}/sst-2/test.jsonl",
        data_name="SST-2",
        teacher_flags=f"{_SHORT} --num-epochs 0.69 --learning-rate 3e-5",
        flags=f"{_THREE} {_SHORT} --num-epochs 2.9 --learning-rate 5e-4 {_BATCHES}",
    ),
    DistilledTask(
        name="topic",
        title="Topic, AG News (13,462 of 120,000)",
        **_splits("{data}/topic/ag_news-subset/SPLIT.tsv.xz"),
        test="{made}/ag-news/test.jsonl",
        data_name="AG News",
        teacher_flags="--num-epochs 3 --learning-rate 3e-5",
        flags=f"{_THREE} --num-epochs 6 --learning-rate 5e-4 {_BATCHES}",
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
        flags=f"{_THREE} --num-epochs 3 --learning-rate 5e-4 {_BATCHES}",
    ),
)
"""Models that are shipped. Training on a GPU ended after some minutes; the epochs are those that the model had by
then."""
