"""The fastest form is found by trying, and written where it is served."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from export import ExportConfig, export_checkpoint, ort_run
from export.autotune.model_directory import MAX_CHANGE, check_same, read_graph, tune_model_directory
from export.autotune.search import FINALISTS, MIN_ROUNDS, autotune
from export.autotune.timing import paired_medians, race, run_all
from export.autotune.workload import Workload, typical_lengths
from export.network import Network, Weights
from export.reporter import Reporter
from export.source import read_source
from export.targets import default_configuration
from export.variant import Configuration, GraphPrecision, GraphVariant
from tasks.machine import describe_machine
from tasks.model_directory import read_model_directory
from tasks.providers import TENSORRT
from tests.export.conftest import SETTINGS, UNTUNED


def seconds_at(speed):
    """What a stopwatch says where each value of a field has its speed, 1 unless it is named; fp32 a quarter of that."""

    def seconds(self, configuration, precision=None):
        values = vars(configuration.variant) | vars(configuration.execution)
        gain = 0.25 if precision == GraphPrecision() else 1
        return 1 / gain / np.prod([known.get(values[name], 1.0) for name, known in speed.items()])

    return seconds


def fastest_together(trials):
    """Of the finalists, in words."""
    return next(trial.value for trial in trials if trial.name == FINALISTS and trial.ratio == 1)


@pytest.fixture
def network(checkpoints):
    source = read_source(checkpoints["plain"])
    model = source.load_model()
    return Network(model.config, Weights.from_model(model), source.task)


def test_the_fastest_is_chosen(network, monkeypatch):
    """One configuration after the other, with its speed beside the fastest's."""
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


def test_what_is_nearly_as_fast_is_tried_together(network, monkeypatch):
    """A norm that gains nothing alone may gain with another attention."""

    def seconds(self, configuration):
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
def test_what_may_be_noise_does_not_leave_the_default(gain, chosen, network, monkeypatch):
    """It is often fast, elsewhere too: a graph that is as fast here alone is no better."""
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
    assert fastest_together(trials) == "attention: Attention"
    assert lines[-1].startswith(f"chosen: {'the default' if best == default else 'attention: Attention; 1.10 times'}")


def test_only_what_matters_leaves_the_default(network, monkeypatch):
    """Also where there are many combinations of what does not, all of them a little faster."""
    speed = {
        "attention": {"Attention": 1.007, "MatMul": 1.008, "MultiHeadAttention": 1.006},
        "bias_gelu": {True: 1.007},
        "disabled_optimizers": {(): 1.007},
        "skip_layer_norm": {True: 1.005},
        "max_batch_tokens": {1024: 1.2},
    }
    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds_at(speed))

    best, _ = autotune(network, GraphPrecision(), Workload((5, 9), 65), num_cores=2)

    assert best == default_configuration().with_value("max_batch_tokens", 1024)


def test_the_speedup_of_a_precision_is_measured_to_the_end(network, monkeypatch):
    """It stands on pages: a loser there is no candidate that is out."""
    calls = []
    monkeypatch.setattr("export.autotune.timing.Timer.seconds", lambda self, *asked: calls.append(asked) or 1.0)

    autotune(
        network,
        GraphPrecision(matmul="dynamic int8"),
        Workload((5, 9), 65),
        num_cores=2,
        compare_with=[GraphPrecision()],
    )

    names = [asked[1].name for asked in calls if len(asked) > 1]
    assert names.count("fp32") == names.count("dynamic int8") == MIN_ROUNDS


def test_the_best_so_far_is_tried_to_the_end(network, monkeypatch):
    """However many combinations there are of what was nearly as fast."""
    speed = {
        "attention": {
            "MatMul": 0.99,
            "fused-QKV MatMul": 0.98,
            "MultiHeadAttention": 0.9,
            "fused-QKV MultiHeadAttention": 0.98,
        },
        "skip_layer_norm": {True: 0.5},
        "embed_layer_norm": {True: 0.5},
        "bias_gelu": {False: 0.98},
        "disabled_optimizers": {(): 0.5},
        "max_batch_tokens": {1: 0.5, 128: 0.9, 256: 0.99, 1024: 0.98},
        "num_threads": {2: 0.5},
    }
    monkeypatch.setattr("export.autotune.timing.Timer.seconds", seconds_at(speed))

    _, trials = autotune(network, GraphPrecision(), Workload((5, 9), 65), num_cores=2)

    fastest = default_configuration().with_value("max_batch_tokens", 512).execution
    best = Configuration(GraphVariant(attention="Attention", bias_gelu=True), fastest)
    assert fastest_together(trials) == best.describe(default_configuration())


def test_really_tuned_graphs_are_served_as_chosen(checkpoints, tmp_path, random_batch):
    """Whatever wins, the graph computes what PyTorch does, and its manifest says how to run it."""
    model = export_checkpoint(checkpoints["spans"], tmp_path / "spans/1", ExportConfig(), settings=SETTINGS["spans"])
    untuned = export_checkpoint(checkpoints["spans"], tmp_path / "spans/2", UNTUNED, settings=SETTINGS["spans"])

    arrays = random_batch(3, 20)
    found = ort_run(model.model_path, execution=model.manifest.execution)(arrays)
    expected = ort_run(untuned.model_path)(arrays)
    for name, logits in expected.items():
        mask = arrays["attention_mask"].astype(bool)
        np.testing.assert_allclose(found[name][mask], logits[mask], atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_model_directory_is_tuned_again(precision, checkpoints, tmp_path, random_batch):
    """It stays the same model, with its numbers, and the digests are those of the new files."""
    config = ExportConfig(precision=precision, tune=False)
    before = export_checkpoint(checkpoints["masked-lm"], tmp_path / "lm/1", config, task="masked-lm")
    arrays = random_batch(2, 9)
    expected = ort_run(before.model_path)(arrays)["logits"]

    trials = tune_model_directory(before.path, Workload(typical_lengths(8, 32), 65))

    after = read_model_directory(before.path)
    assert trials
    assert after.manifest.provenance["machine"] == describe_machine()
    assert read_graph(after)[1] == read_graph(before)[1]
    assert [path.name for path in before.path.parent.iterdir()] == ["1"]
    mask = arrays["attention_mask"].astype(bool)
    found = ort_run(after.model_path, execution=after.manifest.execution)(arrays)["logits"]
    np.testing.assert_allclose(found[mask], expected[mask], atol=1e-4 if precision == "fp32" else 0.2)


def test_directories_of_others_are_refused(exported, tmp_path):
    """One line, and nothing is changed."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    manifest = directory / "manifest.json"
    values = json.loads(manifest.read_text())
    del values["provenance"]["graph"]
    manifest.write_text(json.dumps(values))

    with pytest.raises(ValueError, match="another version wrote them; export the model again"):
        tune_model_directory(directory, Workload((5,), 65))


def test_edited_options_are_not_lost(exported, tmp_path):
    """What a configuration would put in their place is told, and nothing is changed."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    manifest = directory / "manifest.json"
    values = json.loads(manifest.read_text())
    values["execution"]["provider_options"] = {"device_id": "1"}
    manifest.write_text(json.dumps(values))

    with pytest.raises(ValueError, match=r"provider_options. in manifest.json were edited.*set them to \{\}, tune"):
        tune_model_directory(directory, Workload((5,), 65))

    assert json.loads(manifest.read_text()) == values


def test_workload_makes_batches_as_the_server_does():
    """All sequences, sorted by length, within the cap."""
    workload = Workload((3, 9, 4, 30), 65)

    batches = workload.batches(20)

    assert [batch["input_ids"].shape for batch in batches] == [(1, 30), (2, 9), (1, 3)]
    assert sum(int(batch["attention_mask"].sum()) for batch in batches) == workload.num_tokens == 46


def test_batches_are_run_once_by_several_callers():
    """Each batch by whoever is free."""
    seen = []

    seconds = run_all(lambda batch: seen.append(batch) or {}, [{"x": np.array(number)} for number in range(20)], 3)

    assert sorted(int(batch["x"]) for batch in seen) == list(range(20))
    assert seconds > 0


def test_errors_of_callers_are_raised():
    """Memory that does not suffice, say, is no measurement."""

    def fail(batch):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        run_all(fail, [{}], 2)


def test_tensorrt_keeps_to_operators_of_onnx():
    """Whatever else is tried with it."""
    configuration = default_configuration().with_value("attention", "Attention").with_value("provider", TENSORRT)

    assert configuration.variant.standard
    assert configuration.with_value("attention", "MultiHeadAttention").variant.standard
    assert configuration.with_value("bias_gelu", True).variant.standard


@pytest.mark.parametrize(
    ("change", "refused"),
    [(lambda x: x, False), (lambda x: x + 1e-3, False), (lambda x: 3 * x, True), (lambda x: x * np.nan, True)],
)
def test_new_graphs_give_the_old_numbers(change, refused, exported):
    """Compared as numbers: a text has a single logit in regression, whose sign alone says little."""
    task, before = exported["regression"].load_task(), ort_run(exported["regression"].model_path)

    def after(arrays):
        return {name: change(value) for name, value in before(arrays).items()}

    with pytest.raises(ValueError, match="changed the output `logits` by") if refused else nullcontext():
        check_same(task, before, after, MAX_CHANGE["int8"])


def test_measurements_take_turns():
    """So that a slow second of the machine meets all alike."""
    order = []

    def measure(name, values):
        order.append(name)
        return values.pop(0)

    slow_once = {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 9.0]}
    found = race({name: lambda name=name: measure(name, slow_once[name]) for name in slow_once}, 3)

    assert order == list("ababab")
    assert found == {"a": [1.0, 9.0, 1.0], "b": [2.0, 2.0, 9.0]}


def test_losers_run_no_more():
    """After three rounds; what they took by then is known. Nor does a winner without rivals."""
    order = []

    def measure(name, seconds):
        order.append(name)
        return seconds

    times = {"a": 1.0, "b": 1.2, "c": 1.05}
    found = race({name: partial(measure, name, seconds) for name, seconds in times.items()}, 5, max_slowdown=1.1)
    alone = race({name: partial(measure, name, times[name]) for name in "ab"}, 5, max_slowdown=1.1)

    assert "".join(order) == "abcabcabcacac" + "ababab"
    assert found == {"a": [1.0] * 5, "b": [1.2] * 3, "c": [1.05] * 5}
    assert alone == {"a": [1.0] * 3, "b": [1.2] * 3}


@given(
    speeds=st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5),
    moments=st.lists(st.floats(0.1, 10.0), min_size=5, max_size=15),
    data=st.data(),
)
def test_moments_of_the_machine_do_not_count(speeds, moments, data):
    """Whole rounds may be slow or fast, and one of them for one candidate alone."""
    found = {name: [speed * moment for moment in moments] for name, speed in enumerate(speeds)}
    disturbed = data.draw(st.integers(0, len(moments) - 1))
    found[0][disturbed] *= 3
    dropped = data.draw(st.integers(1, len(speeds) - 1))
    found[dropped] = found[dropped][:3]

    seconds = paired_medians(found)

    assert np.allclose([seconds[name] / seconds[0] for name in seconds], np.array(speeds) / speeds[0], rtol=1e-3)


@given(st.lists(st.integers(1, 512), min_size=1, max_size=50), st.floats(0, 20))
def test_scaled_workloads_have_lengths_in_the_same_proportions(lengths, times):
    """However often each sequence is to come, or a part of them."""
    scaled = Workload(tuple(lengths), 65).scaled(times)

    assert len(scaled.lengths) == max(1, round(times * len(lengths)))
    counts = [scaled.lengths.count(length) / lengths.count(length) for length in set(lengths)]
    assert max(counts) - min(counts) <= 1


@given(st.lists(st.integers(1, 512), min_size=50, max_size=400), st.floats(0.02, 3))
def test_scaled_workloads_are_as_long(lengths, times):
    """On average: a part is none of short texts. A sequence stands for those about it."""
    scaled = Workload(tuple(lengths), 65).scaled(times)

    assert abs(scaled.mean_length - np.mean(lengths)) <= 512 / len(scaled.lengths)


def test_typical_lengths_are_those_of_sentences():
    """Within what the model reads."""
    lengths = typical_lengths(500, 64)

    assert 20 < np.mean(lengths) < 35
    assert (min(lengths) >= 3, max(lengths) <= 64) == (True, True)
    assert set(typical_lengths(20, 2)) == {2}


def test_command_tunes(exported, tmp_path, monkeypatch, capsys):
    """`python -m export tune` says what was tried."""
    from export.__main__ import main

    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    (tmp_path / "texts.tsv").write_text("sentence\tlabel\na red apple of 7 tokens\t1\n")
    texts = ["--texts", str(tmp_path / "texts.tsv"), "--columns.text", "sentence"]
    monkeypatch.setattr("sys.argv", ["export", "tune", str(directory), *texts])

    main()

    out = capsys.readouterr().out
    length = read_model_directory(directory).manifest.provenance["graph"]["trials"][-1]["mean_length"]
    assert f"on sequences of {length:.0f} tokens on average" in (directory / "report.html").read_text()
    assert "attention: MatMul" in out
    assert f"model directory -> {Path(directory)}" in out
