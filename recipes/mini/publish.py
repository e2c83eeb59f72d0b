"""Copy the served models, and the checkpoint bertline-mini, to models/.

    python -m recipes.mini.publish --data DATA --out build/mini

Writes `models/bertline-mini/`, the checkpoint, and `models/<name>/1/`, int8. Each model card gets the licences of its
data. Models of the same checkpoint stay as they are, because `python -m export tune` may have made them faster.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from export.html_report import REPORT_FILE
from recipes.mini.cards import PRETRAINED, notes
from recipes.mini.pipeline import NAME, Arguments, Pipeline
from recipes.mini.tasks import is_distilled
from tasks.bundle.files import atomic_directory
from tasks.bundle.model_directory import read_model_directory
from training.checkpoint.task_card import CARD_FILE
from training.checkpoint.weights import checkpoint_digest
from training.command_line.command import command, parse
from training.reports.model_card import with_notes

MODELS = Path("models")


@command
def main() -> None:
    """Command line."""
    pipeline = Pipeline(parse(Arguments, "recipes.mini.publish", __doc__))
    for source, place, about in list(shipped(pipeline)):  # raises for outdated results before anything is copied
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_directory(place, replace=True) as temporary:
            shutil.copytree(source, temporary, ignore=shutil.ignore_patterns(REPORT_FILE), dirs_exist_ok=True)
            card = temporary / CARD_FILE
            card.write_text(with_notes(card.read_text(encoding="utf-8"), notes(about)), encoding="utf-8")
        print(f"{source} -> {place}")


def shipped(pipeline: Pipeline) -> Iterator[tuple[Path, Path, str]]:
    """Yield each model to copy: source, destination, and the name whose notes its card gets."""
    if pipeline.pretrained.exists() and pipeline.pretrained.resolve() != (MODELS / NAME).resolve():
        yield pipeline.pretrained, MODELS / NAME, PRETRAINED
    for name in pipeline.scored():
        place = MODELS / name / "1"
        if is_distilled(name) and _origin(place) != checkpoint_digest(pipeline.checkpoint(name)):
            yield pipeline.model(name, "int8"), place, name


def _origin(place: Path) -> str | None:
    """Return the digest of the checkpoint that a model comes from; None without a model."""
    if not place.exists():
        return None
    return str(read_model_directory(place).manifest.provenance["checkpoint"]["sha256"])


if __name__ == "__main__":
    main()
