"""Train, export, serve and query small models on text that is already on this machine.

    python -m recipes.demo
    python -m recipes.demo -v     # also print the tables of the autotuner

The corpus is the documentation of Python's standard library and of the installed packages. Every stage is a public
command, and is printed before it runs. The results are in build/demo: data, runs, models, `scores.md` with the table
printed at the end, and `curves.png`. They replace those of the previous demo; other directories are not touched.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from recipes.demo.scoreboard import MODELS, Scoreboard, served_name
from recipes.stage import heading, one_line_errors, run_stage, serve
from tasks.bundle.files import atomic_write
from training.command_line.command import command, parse
from training.reports.plot import plot_runs
from training.reports.tables import markdown_table

MARKER_FILE = ".demo"
"""Marks a directory that the demo made, so that the next run may replace its results."""
SCORES_FILE, CURVES_FILE = "scores.md", "curves.png"
LONG_OUTPUT = ("recipes.demo.data", "export")
"""Commands that print only their last line, the result, without -v."""
VOCAB = "--vocab-size 6000"
PRETRAIN = (
    "--initialization local --num-steps 800 --dropout 0 --learning-rate 3e-3 --betas 0.9 0.98 --masking-rate 0.4 "
    "--eval-every 100 --eval-examples 256"
)
CLASSIFICATION = "--num-epochs 2 --learning-rate 5e-4 --dropout 0.1"
SPANS = (
    "--num-epochs 3 --learning-rate 1e-3 --max-seq-length 192 --max-query-length 32 --max-answer-length 20 --dropout 0"
)
FINETUNINGS = [
    ("library", "classification", "which library is a docstring from?", "classification", "jsonl", CLASSIFICATION),
    ("answer", "spans", "what type is a parameter?", "spans", "json", SPANS),
]


@dataclass(frozen=True, kw_only=True)
class DemoArguments:
    """Train, export, serve and query small models."""

    out: Path = Path("build/demo")
    """Directory to write."""
    verbose: Annotated[bool, tyro.conf.arg(aliases=["-v"])] = False
    """Print all output of all stages."""


def stages(out: Path) -> list[tuple[str, str]]:
    """Return the stages in order: title, and arguments of `python -m`."""
    to = shlex.quote(str(out))
    data, runs, checkpoint = f"{to}/data", f"{to}/runs", f"{to}/runs/pretrain/checkpoint"
    found = [
        ("Documentation strings -> corpus and labelled data", f"recipes.demo.data {data}"),
        ("Vocabulary", f"training.vocab --data {data}/corpus/train.txt --out {to}/tokenizer {VOCAB}"),
    ]
    for split in ("train", "dev"):
        source = f"--data {data}/corpus/{split}.txt --tokenizer {to}/tokenizer"
        found.append((f"Corpus ({split})", f"training.corpus {source} --out {to}/corpus-{split}"))
    corpora = f"--corpus {to}/corpus-train --dev-corpus {to}/corpus-dev"
    found.append(("Pretraining", f"training.pretrain tiny {corpora} --run-dir {runs}/pretrain {PRETRAIN}"))
    for run, kind, title, folder, suffix, flags in FINETUNINGS:
        files = f"--train {data}/{folder}/train.{suffix} --dev {data}/{folder}/dev.{suffix}"
        arguments = f"{kind} --checkpoint {checkpoint} {files} --run-dir {runs}/{run} {flags}"
        found.append((f"Fine-tuning: {title}", f"training.finetune {arguments}"))
    for name, model in MODELS.items():
        for precision in ("fp32", "int8"):
            paths = f"{runs}/{model.run}/checkpoint {to}/models/{served_name(name, precision)}/1"
            wanted = "int8 --mixed" if precision == "int8" else precision
            arguments = f"{paths} --task {model.task} --precision {wanted}"
            found.append((f"Export: {name}, {precision}", f"export {arguments}"))
    return found


def begin(out: Path) -> None:
    """Create the directory and remove the results of a previous demo.

    Raises:
        ValueError: if it holds other files.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / MARKER_FILE).is_file():
        raise ValueError(
            f"`{out}` is not empty and was not made by the demo (no {MARKER_FILE}); choose another --out, or remove it"
        )
    out.mkdir(parents=True, exist_ok=True)
    for name in ("data", "tokenizer", "corpus-train", "corpus-dev", "runs", "models"):
        shutil.rmtree(out / name, ignore_errors=True)
    for name in (SCORES_FILE, CURVES_FILE):
        (out / name).unlink(missing_ok=True)
    (out / MARKER_FILE).touch()


@command
@one_line_errors()
def main() -> None:
    """Command line."""
    arguments = parse(DemoArguments, "recipes.demo", __doc__)
    out = arguments.out
    begin(out)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    start = time.monotonic()
    planned = stages(out)
    total = len(planned) + 1
    seconds = {}
    for number, (title, command_line) in enumerate(planned, start=1):
        only_result = command_line.split()[0] in LONG_OUTPUT and not arguments.verbose
        seconds[title] = run_stage(number, total, title, command_line, only_result=only_result)
    print(f"\n{heading(total, total, 'Serving and scoring')}", flush=True)
    with serve(out / "models") as target:
        board = Scoreboard(out, target)
        table = board.table()
        print(f"\n{board.samples()}")
    curves = plot_runs({name: out / "runs" / name for name in ("pretrain", "library", "answer")}, out / CURVES_FILE)
    seconds["Serving and scoring"] = time.monotonic() - start - sum(seconds.values())
    report = f"{table}\n\n{_times(seconds)}\n"
    atomic_write(out / SCORES_FILE, report.encode())
    print(f"\n{report}\ntraining curves -> {curves}\nserve these models with: make serve MODELS={out / 'models'}")


def _times(seconds: dict[str, float]) -> str:
    exports = sum(value for title, value in seconds.items() if title.startswith("Export"))
    rows = {title: value for title, value in seconds.items() if not title.startswith("Export")}
    rows = {**rows, "Export, fp32 and int8": exports, "All": sum(seconds.values())}
    return markdown_table([("stage", "seconds"), *((title, f"{s:.0f}") for title, s in rows.items())])


if __name__ == "__main__":
    main()
