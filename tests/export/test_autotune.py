"""Autotuning: search, timing, workloads, and tuning of model directories."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from export import graph_run
from export.__main__ import main
from export.autotune.model_directory import MAX_CHANGE, check_same, read_graph, tune_model_directory
from export.autotune.search import FINALISTS, autotune
from export.autotune.timing import Timer, fitted_seconds, race
from export.autotune.workload import NUM_SAMPLES, Workload, typical_lengths
from export.reporter import Reporter
from export.targets import TARGETS, default_configuration
from export.variant import Configuration, GraphPrecision, GraphVariant
from tasks.bundle.machine import describe_machine
from tasks.bundle.model_directory import read_model_directory
from tests.export.conftest import UNTUNED, int8, read_network
from training.checkpoint.task_card import CARD_FILE
from training.reports.model_card import with_notes


def seconds_at(speed):
    """Return a fake `Timer.seconds`: each value of a field has a speed, 1 by default; fp32 has a quarter of it."""

    def seconds(self, configuration, number=0, precision=None):
        values = vars(configuration.variant) | vars(configuration.execution)
        gain = 0.25 if precision == GraphPrecision() else 1
        return 1 / gain / np.prod([known.get(values[name], 1.0) for name, known in speed.items()])

    return seconds


@pytest.fixture(scope="module")
def network(checkpoints):
    return read_network(checkpoints["plain"])[1]


def test_fastest_configuration_is_chosen(network, monkeypatch):
    """The best value of each field is chosen, and every trial is reported relative to the fastest."""
    speed = {
        "attention": {"Attention": 2.0},
        "skip_layer_norm": {True: 0.5},
        "max_batch_tokens": {256: 1.01, 512: 1.005, 128: 1.2},
        "bias_gelu": {False: 1.1},
        "embed_layer_norm": {False: 1.1},
        "num_threads": {1: 1.1},
        "disabled_optimizers": {("SkipLayerNormFusion",): 1.1},
    }
    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds_at(speed))

    lines = []

    int8, load = GraphPrecision(matmul="dynamic int8"), Workload((5, 9), 65)
    best, trials = autotune(
        network, int8, load, num_cores=2, compare_with=[GraphPrecision()], reporter=Reporter(lines.append)
    )

    assert best == Configuration(
        GraphVariant(attention="Attention"), default_configuration().with_value("max_batch_tokens", 128).execution
    )
    assert {(trial.name, trial.value): round(trial.ratio, 2) for trial in trials}["skip_layer_norm", True] == 0.5
    assert lines[0].startswith("attention: MatMul 50%, ")
    assert lines[0].endswith(" Attention 100%")
    assert lines[-3] == "finalists:\n    attention: Attention, max batch tokens: 128 100%\n    default 42%"
    assert lines[-2].startswith(
        "chosen: attention: Attention, max batch tokens: 128; 2.38 times as fast as the default; "
    )
    assert lines[-2].endswith(" tokens/s")
    assert lines[-1] == "precision: dynamic int8 100%, fp32 25%"


@pytest.mark.parametrize("busy", [0.0, 0.5])
def test_a_busy_machine_is_noted(network, monkeypatch, busy):
    """A note reports that other work disturbed the final race; noise of an idle machine is not mentioned."""
    rng, lines = np.random.default_rng(0), []
    monkeypatch.setattr(
        "export.autotune.timing.Timer.seconds",
        lambda self, configuration, number=0, precision=None: (
            (0.1 if number % 4 < 2 else 0.1 + 0.1 * busy) * rng.normal(1, 0.03)
        ),
    )

    autotune(network, GraphPrecision(), Workload((5, 9), 65), num_cores=2, reporter=Reporter(lines.append))

    noted = [line for line in lines if line.startswith("note: this machine was busy (")]
    assert len(noted) == (busy > 0)
    assert all("tune again when it is quiet" in line for line in noted)


@pytest.mark.parametrize("is_large", [False, True])
def test_large_networks_race_in_heats(is_large, network, monkeypatch):
    """Few sessions are alive at a time, and all candidates are compared with the fastest, whichever heat it was in."""
    speed, alive, most = {"attention": {"MatMul": 1.5, "Attention": 2.0}}, set(), []

    def seconds(self, configuration, *arguments, **options):
        self.is_large = is_large
        alive.add(configuration.session_key())
        most.append(len(alive))
        return seconds_at(speed)(self, configuration, *arguments, **options)

    def close(self, *, keep=()):
        alive.intersection_update(item.session_key() for item in keep)

    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds)
    monkeypatch.setattr("export.autotune.timing.Timer.close_sessions", close)
    best, trials = autotune(network, GraphPrecision(matmul="dynamic int8"), Workload((5, 9), 65), num_cores=2)

    ratios = {trial.value: round(trial.ratio, 2) for trial in trials if trial.name == "attention"}
    assert best.variant.attention == "Attention"
    assert ratios["Attention"] == 1
    assert ratios["MatMul"] == 0.75
    assert (max(most) <= 3) == is_large


def test_nearly_fastest_values_are_combined(network, monkeypatch):
    """Values that are nearly as fast alone are tried together, as they may win in combination."""

    def seconds(self, configuration, number=0):
        attention = {"MatMul": (1.0, 1.02), "Attention": (1.005, 0.9)}.get(configuration.variant.attention, (1.2, 1.2))
        as_usual = replace(configuration.variant, attention="fused-QKV MatMul", bias_gelu=False) == GraphVariant()
        slow = 1 if as_usual and configuration.execution == default_configuration().execution else 1.3
        return slow * attention[configuration.variant.bias_gelu]

    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds)

    best, trials = autotune(network, GraphPrecision(), Workload((5, 9), 65), num_cores=2)

    assert (best.variant.attention, best.variant.bias_gelu) == ("Attention", True)
    finals = [trial for trial in trials if trial.name == FINALISTS]
    assert max(trial.ratio for trial in finals) == 1
    assert "default" in [trial.value for trial in finals]


@pytest.mark.parametrize(("gain", "chosen"), [(1.02, "fused-QKV MatMul"), (1.1, "Attention")])
def test_gain_within_noise_keeps_the_default(gain, chosen, network, monkeypatch):
    """A gain that may be noise keeps the default, which is fast on many machines."""
    default = default_configuration()
    fields = vars(default.variant) | vars(default.execution)
    del fields["attention"], fields["provider_options"]
    speed = {"attention": {"Attention": gain}} | {name: {value: 1.5} for name, value in fields.items()}
    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds_at(speed))
    lines = []

    best, trials = autotune(
        network, GraphPrecision(), Workload((5, 9), 65), num_cores=2, reporter=Reporter(lines.append)
    )

    assert best == default.with_value("attention", chosen)
    assert next(item.value for item in trials if item.name == FINALISTS and item.ratio == 1) == "attention: Attention"
    assert lines[-1].startswith(f"chosen: {'the default' if best == default else 'attention: Attention; 1.10 times'}")


def test_speedup_is_that_over_fp32(network, monkeypatch):
    """Where bf16 between int8 products is chosen, the fp32 graph that it is compared with still computes in fp32."""
    int8, floats = GraphPrecision(matmul="static int8"), {}

    def seconds(self, configuration, number=0, precision=None):
        floats.setdefault(precision, set()).add(configuration.execution.floats)
        return {"fp32": 1.5, "bf16": 1.0}[configuration.execution.floats]

    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds)
    target = replace(TARGETS["openvino"], floats=("fp32", "bf16"))
    best, _ = autotune(network, int8, Workload((5, 9), 65), target=target, num_cores=2, compare_with=[GraphPrecision()])

    assert best.execution.floats == "bf16"
    assert (floats[int8], floats[GraphPrecision()]) == ({"bf16"}, {"fp32"})


@pytest.mark.usefixtures("untimed")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_model_directory_is_tuned_again(precision, export, random_batch):
    """Tuning keeps the model and its precision, and writes the digests of the new files."""
    before = export("masked-lm", int8() if precision == "int8" else UNTUNED, task="masked-lm")
    arrays = random_batch(2, 9)
    expected = graph_run(before.model_path)(arrays)["logits"]

    tune_model_directory(before.path, Workload((3, 9), 65))

    after = read_model_directory(before.path)
    assert after.manifest.provenance["machine"] == describe_machine()
    assert read_graph(after)[1] == read_graph(before)[1]
    assert [path.name for path in before.path.parent.iterdir()] == ["1"]
    mask = arrays["attention_mask"].astype(bool)
    found = graph_run(after.model_path, execution=after.manifest.execution)(arrays)["logits"]
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-4 if precision == "fp32" else 0.2)


def test_edited_provider_options_are_refused(exported, tmp_path):
    """The error names the options that tuning would write, and the manifest stays unchanged."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    manifest = directory / "manifest.json"
    values = json.loads(manifest.read_text())
    values["execution"]["provider_options"] = {"device_id": "1"}
    manifest.write_text(json.dumps(values))

    with pytest.raises(ValueError, match=r"provider_options. in manifest.json were edited.*set them to \{\}, tune"):
        tune_model_directory(directory, Workload((5,), 65))

    assert json.loads(manifest.read_text()) == values


def test_workload_batches_like_the_server():
    """Batches contain all sequences, sorted by length, within `max_batch_tokens`."""
    workload = Workload((3, 9, 4, 30), 65)

    batches = workload.batches(20)

    assert [batch["input_ids"].shape for batch in batches] == [(1, 30), (2, 9), (1, 3)]
    assert sum(int(batch["attention_mask"].sum()) for batch in batches) == workload.num_tokens == 46


def test_candidates_of_a_round_run_the_same_sequences(network, monkeypatch):
    """In each round all batch sizes and graphs get the same sequences, and other ones in the next round."""
    monkeypatch.setattr("export.autotune.timing.MIN_BATCHES", 1)
    timer = Timer(network, GraphPrecision(), Workload(typical_lengths(20, 40), 65), TARGETS["cpu"], 2)
    default, runs = default_configuration(), []
    caps = [default.with_value("max_batch_tokens", cap) for cap in (64, 128, 256)]
    candidates = [*caps, default.with_value("attention", "MatMul")]
    passes = {item: partial(timer.seconds, item) for item in candidates}
    race(passes, 1)  # loads the graphs
    monkeypatch.setattr(
        "export.autotune.timing.run_all",
        lambda run, batches, num_callers: (
            runs.append(sorted(int(length) for batch in batches for length in batch["attention_mask"].sum(1))) or 0.1
        ),
    )

    race(passes, NUM_SAMPLES)

    rounds = [runs[start : start + len(candidates)] for start in range(0, len(runs), len(candidates))]
    assert all(lengths == round_[0] for round_ in rounds for lengths in round_)
    assert len({tuple(round_[0]) for round_ in rounds}) == NUM_SAMPLES


@pytest.mark.parametrize("target", [TARGETS["cpu"], TARGETS["cpu"].without_padding()], ids=["pads", "does not pad"])
def test_passes_are_long_enough(target, network, monkeypatch):
    """A pass takes about the minimum time, whether the workload is first tried on many sequences or on one."""
    monkeypatch.setattr("export.autotune.timing.PASS_S", 0.05)
    monkeypatch.setattr("export.autotune.timing.MIN_BATCHES", 1)
    monkeypatch.setattr(
        "export.autotune.timing.Timer.seconds",
        lambda self, configuration, number=0: 1e-5 * self.workload.num_tokens,
    )

    timer = Timer(network, GraphPrecision(), Workload(typical_lengths(300, 128), 65), target, 2)

    assert 0.045 < timer.pass_s < 0.055


@pytest.mark.parametrize(
    ("change", "refused"),
    [(lambda x: x, False), (lambda x: x + 1e-3, False), (lambda x: 3 * x, True), (lambda x: x * np.nan, True)],
)
def test_changed_outputs_are_refused(change, refused, exported):
    """A tuned graph whose outputs differ from the old ones is refused, also for a single logit."""
    task, before = exported["regression"].load_task(), graph_run(exported["regression"].model_path)

    def after(arrays):
        return {name: change(value) for name, value in before(arrays).items()}

    with pytest.raises(ValueError, match="changed the output `logits` by") if refused else nullcontext():
        check_same(task, before, after, MAX_CHANGE["int8"])


def test_measurements_alternate():
    """Candidates are measured alternately, so that a slow moment of the machine affects all of them."""
    order = []

    def measure(name, values, number):
        order.append(f"{name}{number}")
        return values.pop(0)

    slow_once = {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 9.0]}
    found = race({name: partial(measure, name, list(values)) for name, values in slow_once.items()}, 3)

    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert found == slow_once


def test_slow_candidates_are_dropped():
    """Very slow candidates stop after three rounds, others later, and so does a winner without rivals."""
    order = []

    def measure(name, seconds, number):
        order.append(name)
        return seconds

    times = {"a": 1.0, "b": 2.0, "c": 1.05}
    found = race({name: partial(measure, name, seconds) for name, seconds in times.items()}, 5, max_slowdown=1.1)
    alone = race({name: partial(measure, name, times[name]) for name in "ab"}, 5, max_slowdown=1.1)
    later = race({"a": lambda number: 1.0, "b": lambda number: 1.25}, 30, max_slowdown=1.1)

    assert "".join(order) == "abcabcabcacac" + "ababab"
    assert found == {"a": [1.0] * 5, "b": [2.0] * 3, "c": [1.05] * 5}
    assert alone == {"a": [1.0] * 3, "b": [2.0] * 3}
    assert len(later["b"]) == 15


@settings(max_examples=40)
@given(
    speeds=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5),
    moments=st.lists(st.floats(1.0, 1.5), min_size=5, max_size=15),
    data=st.data(),
)
def test_fitted_seconds_ignore_slow_rounds(speeds, moments, data):
    """Slow rounds, and one slow measurement of one candidate, hardly change the ratios.

    That of a candidate that has dropped out after three rounds is less exact.
    """
    found = {name: [speed * moment for moment in moments] for name, speed in enumerate(speeds)}
    disturbed = data.draw(st.integers(0, len(moments) - 1))
    found[0][disturbed] *= 3
    dropped = data.draw(st.integers(1, len(speeds) - 1))
    found[dropped] = found[dropped][:3]

    seconds = fitted_seconds(found)

    errors = {name: abs(seconds[name] / seconds[0] / speeds[name] * speeds[0] - 1) for name in seconds}
    assert errors.pop(dropped) < 0.1
    assert max(errors.values()) < 0.005


@pytest.mark.parametrize("slowdown", [1.2, 1.5, 2.0, [1.5, 1.5, 1.5, 1.2, 1.5, 1.2]])
def test_fitted_seconds_on_a_busy_host(slowdown):
    """A shared host that is busy half of the time, in bursts about as long as a round, hides no difference of 3%."""
    rng, speeds, worst = np.random.default_rng(0), 1 + 0.03 * np.arange(6), []
    for _ in range(25):
        is_busy = (np.cumsum(rng.random(60 * 6) < 1 / 6) % 2).reshape(60, 6)
        times = speeds * np.array(slowdown) ** is_busy * rng.normal(1, 0.02, is_busy.shape)
        seconds = np.array([*fitted_seconds(dict(enumerate(times.T.tolist()))).values()])
        worst.append(np.abs(seconds / seconds[0] / speeds - 1).max())

    assert np.median(worst) < 0.02
    assert np.quantile(worst, 0.9) < 0.03


@given(st.lists(st.integers(1, 512), min_size=1, max_size=50), st.floats(0, 20))
def test_scaled_workloads_have_lengths_in_the_same_proportions(lengths, times):
    """Scaling a workload repeats or samples its lengths evenly."""
    scaled = Workload(tuple(lengths), 65).scaled(times)

    assert len(scaled.lengths) == max(1, round(times * len(lengths)))
    counts = [scaled.lengths.count(length) / lengths.count(length) for length in set(lengths)]
    assert max(counts) - min(counts) <= 1


def test_command_tunes(exported, export, tmp_path, monkeypatch, capsys):
    """`python -m export tune` prints the trials and the directory, and updates report and card, whose notes stay.

    Notes that a user wrote into the card also survive another export.
    """
    directory, lines = shutil.copytree(exported["embedding"].path, tmp_path / "m/1"), []
    card, notes = directory / CARD_FILE, "## Licence\n\nCC0, says *Müller*."
    before = card.read_text()
    card.write_text(with_notes(before, notes))
    (tmp_path / "texts.tsv").write_text("sentence\tlabel\na red apple of 7 tokens\t1\n")
    texts = ["--texts", str(tmp_path / "texts.tsv"), "--columns.text", "sentence"]
    monkeypatch.setattr("sys.argv", ["export", "tune", str(directory), *texts])

    main()
    out, tuned = capsys.readouterr().out, card.read_text()
    trials = read_model_directory(directory).manifest.provenance["graph"]["trials"]
    report = (directory / "report.html").read_text()
    export("plain", replace=True, lines=lines)

    assert f"on sequences of {trials[-1]['mean_length']:.0f} tokens on average" in report
    assert "attention: MatMul" in out
    assert f"model directory -> {directory}" in out
    assert "execution settings are defaults" in before
    assert f"in {len(trials)} trials" in tuned.replace("\n", " ")
    assert all(text.endswith(f"-->\n\n{notes}\n") for text in (tuned, card.read_text()))
    assert tuned != card.read_text()
    assert any("keeping the notes" in line for line in lines)
