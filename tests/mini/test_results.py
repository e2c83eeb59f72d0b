"""What the page of results says plainly of figures that were not reached."""

import pytest

from mini.results import below_baseline, easy_aims, in_words, near_baseline, near_unpretrained, unlike_fp32


def cola(mean, unpretrained, deviation=0.02, *, served=0.5, fp32=0.5):
    """A record of CoLA."""
    rows = [
        {"mean": value, "standard_deviation": deviation, "runs": [{"name": name, "score": value}]}
        for name, value in (("seed0", mean), ("scratch-seed0", unpretrained))
    ]
    ways = {name: {"scores": {"matthews": score}} for name, score in (("PyTorch", fp32), ("served int8", served))}
    grid = {"settings": rows[:1], "best": {"name": "seed0"}, "unpretrained": rows[1]}
    return {"cola": {"grid": grid, "ways": {"dev": ways}}}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (cola(0.14, 0.10), []),
        (cola(0.11, 0.10), ["CoLA (11.0 ± 2.0 against 10.0 ± 2.0)"]),
        (cola(0.09, 0.10, None), ["CoLA (9.0 against 10.0)"]),
        (cola(0.11, 0.10, None), []),
        (cola(0.11, None, None), []),
    ],
)
def test_pretraining_that_is_worth_no_more_than_a_seed_is_told(record, said):
    """One seed has no deviation, and runs that all failed no mean."""
    assert [*near_unpretrained(record)] == said


@pytest.mark.parametrize(
    ("fp32", "served", "said"),
    [
        (0.5, 0.5049, []),
        (0.5, 0.51, ["CoLA on dev (51.0 instead of 50.0)"]),
        (0.5, 0.49, ["CoLA on dev (49.0 instead of 50.0)"]),
    ],
)
def test_int8_scores_unlike_fp32_are_told(fp32, served, said):
    """Better ones, too: it is to be the same model."""
    assert [*unlike_fp32(cola(0.5, 0.1, fp32=fp32, served=served))] == said


@pytest.mark.parametrize(
    ("mean", "num_examples", "said"),
    [
        (0.60, 100, ["RTE (60.0 against 52.7)"]),  # two standard errors are 9.8 points
        (0.63, 100, []),
        (0.60, 400, []),  # and here they are 4.9
        (0.50, 400, ["RTE (50.0 against 52.7)"]),
    ],
)
def test_accuracy_that_chance_may_bring_is_told(mean, num_examples, said):
    """By the size of the dev set, also where F1 judges; the other metrics have no such error here."""
    run = {"name": "seed0", "score": mean, "dev": {"accuracy": mean}}
    settings = [{"mean": mean, "standard_deviation": 0.01, "runs": [run, {"name": "seed1", "score": None}]}]
    dev = {"num_examples": num_examples, "baseline": {"scores": {"accuracy": 0.527}}}
    rte = {"grid": {"settings": settings, "best": {"name": "seed0"}}, "ways": {"dev": dev}}

    assert [*near_baseline({"rte": rte})] == said
    assert [*near_baseline({"mrpc": rte})] == [line.replace("RTE", "MRPC") for line in said]
    assert [*near_baseline(cola(0.01, 0.01))] == []


def test_vectors_of_int8_unlike_fp32_are_told():
    """As scores of tasks are."""
    embed = {"PyTorch": {"spearman": 0.711}, "served int8": {"spearman": 0.705}}

    assert [*unlike_fp32({"embed": embed})] == ["vectors of texts (70.5 instead of 71.1)"]


def test_aims_and_comparisons_that_say_little_are_told():
    """An aim below what needs no model, and random weights below that."""
    record = cola(0.5, 0.1)["cola"] | {"ways": {"dev": {"baseline": {"scores": {"f1_1": 0.812}}}}}
    records = {"mrpc": record, "embed": {"word overlap": {"spearman": 0.5}}}

    assert [*easy_aims(records)] == [*below_baseline(records)] == ["MRPC"]


@pytest.mark.parametrize(("items", "said"), [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b and c")])
def test_lists_in_words(items, said):
    """Nothing for nothing."""
    assert in_words(items) == said
