"""Choose the thresholds of a multi-label classifier whose checkpoint has none."""

from __future__ import annotations

from dataclasses import replace

from export.evaluation_set import MIN_SPLIT_TEXTS, EvaluationSet, ExportData
from export.reporter import Reporter
from export.source import ExportableModel, Source
from tasks.batching import predict
from tasks.classification import Classification, ClassificationSettings, best_thresholds
from training.checkpoint.evaluation import torch_run
from training.data.examples import sample_indices

_NUM_SHOWN = 8
"""Number of thresholds that the line for the user lists."""


def choose_thresholds(
    source: Source, model: ExportableModel, data: ExportData, evaluation_set: EvaluationSet, reporter: Reporter
) -> tuple[Source, EvaluationSet]:
    """Choose the threshold with the best F1 of each label on labelled data, as fine-tuning does.

    One half of the examples, drawn at random, chooses; the other half judges the graphs, as scores of examples that
    chose would be too good. Fewer than `MIN_SPLIT_TEXTS` examples do both, which the printed line states.

    Returns:
        The source with thresholds, and the evaluation set of the other half; both unchanged for other models, for
        thresholds that are given, and without labels.
    """
    task, examples = source.task, evaluation_set.examples
    settings = task.settings
    is_open = isinstance(settings, ClassificationSettings) and settings.is_multi_label and not settings.thresholds
    if not is_open:
        return source, evaluation_set
    if evaluation_set.score is None:
        reporter.say("the checkpoint has no thresholds, so each is 0.5 (--dev to choose them, or --thresholds)")
        return source, evaluation_set
    is_split = len(examples) >= MIN_SPLIT_TEXTS
    chosen = set(sample_indices(len(examples), len(examples) // 2) if is_split else range(len(examples)))
    choosing = [example for index, example in enumerate(examples) if index in chosen]
    with reporter.bar("thresholds", unit="example", total=len(choosing)) as bar:
        predictions = predict(task, choosing, torch_run(model, task), progress=bar.update)
    thresholds = best_thresholds(choosing, predictions, settings.labels)
    known = Classification(task.tokenizer, replace(settings, thresholds=thresholds))
    judging = [index for index in range(len(examples)) if not is_split or index not in chosen]
    reporter.say(_describe(known.settings, len(choosing), len(judging), is_split=is_split))
    name = f"thresholds chosen on {f'{len(choosing):,} others' if is_split else 'the same examples'}"
    return replace(source, task=known), data.part(known, evaluation_set, judging, name)


def _describe(settings: ClassificationSettings, num_choosing: int, num_judging: int, *, is_split: bool) -> str:
    pairs = list(zip(settings.labels, settings.thresholds, strict=True))
    values = ", ".join(f"{label} {threshold:.3f}" for label, threshold in pairs[:_NUM_SHOWN])
    more = f" and {len(pairs) - _NUM_SHOWN} more" * (len(pairs) > _NUM_SHOWN)
    which = (
        f"on {num_choosing:,} examples of --dev; {num_judging:,} others judge the graphs"
        if is_split
        else f"on the {num_choosing:,} examples of --dev, which also judge the graphs, so scores are too good; give at "
        f"least {MIN_SPLIT_TEXTS}"
    )
    return f"the checkpoint has no thresholds; the best for F1 are {values}{more}, chosen {which} (--thresholds)"
