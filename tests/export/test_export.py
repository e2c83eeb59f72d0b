from __future__ import annotations

import re
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers

from export import ExportConfig, QualityLimits, graph_run
from export.__main__ import main
from export.evaluation_set import ExportData
from export.parity import ParityError
from export.pipeline import read_data
from export.quality_gate import QualityError
from export.reporter import Reporter
from export.source import read_source
from export.targets import default_configuration
from tasks.bundle.files import sha256
from tasks.bundle.manifest import space_of
from tasks.bundle.model_directory import read_model_directory
from tasks.classification import ClassificationSettings
from tests.commands import call
from tests.export.conftest import UNTUNED, int8, save_ours
from training.checkpoint.weights import checkpoint_digest
from training.data.columns import Columns

IMPOSSIBLE = ExportConfig(tune=False, limits=QualityLimits(atol=1e-12))


def check_vectors(model, directory, arrays):
    network = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False).eval()
    with torch.inference_mode():
        hidden = network(**{name: torch.from_numpy(array) for name, array in arrays.items()}).last_hidden_state.numpy()
    actual = graph_run(model.model_path)(arrays)["sentence_embedding"]
    np.testing.assert_allclose(actual, hidden[:, 0], atol=1e-4)


def without_pooler(save, path):
    return save(path, add_pooling_layer=False)


def pickled(save, path):
    save(path)
    network = transformers.BertModel.from_pretrained(path)
    torch.save(network.state_dict(), path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return path


def vocab_only(save, path):
    save(path, "BertForPreTraining")
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        (path / name).unlink()
    return path


def cased_tanh(save, path):
    return save(path, lowercase=False, hidden_act="gelu_new")


@pytest.mark.parametrize("layout", [without_pooler, pickled, vocab_only, cased_tanh])
def test_foreign_layouts_are_exported(tmp_path, layout, save_checkpoint, export, random_batch, texts, monkeypatch):
    """Graph and tokenizer match the checkpoint, for every layout of its files; the export opens no socket."""

    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    directory = layout(save_checkpoint, tmp_path / "checkpoint")

    model = export(directory)

    check_vectors(model, directory, random_batch(3, 9))
    theirs = transformers.BertTokenizerFast.from_pretrained(directory)
    texts = [*texts, "The BAKERY é"]
    tokens = model.load_task().tokenizer.tokenize(texts)
    assert [item.ids.tolist() for item in tokens] == theirs(texts, add_special_tokens=False)["input_ids"]


def test_manifest_records_provenance(exported, checkpoints):
    """The manifest has digests, versions and scores, and is read back as it was written."""
    model = exported["embedding"]
    manifest = model.manifest

    assert (manifest.name, manifest.version, manifest.task, manifest.precision) == ("plain", "1", "embedding", "fp32")
    assert (manifest.opset, manifest.hidden_size, manifest.vocab_size) == (20, 32, 65)
    assert manifest.files == {name: sha256(model.path / name) for name in ("model.onnx", "tokenizer.json")}
    assert manifest.provenance["checkpoint"]["sha256"] == checkpoint_digest(checkpoints["plain"])
    assert manifest.provenance["checkpoint"]["name"] == "plain"
    assert manifest.provenance["versions"]["onnx"] == onnx.__version__
    assert manifest.scores["fp32_difference"]["sentence_embedding"] <= 1e-4
    names = {path.name for path in model.path.iterdir()}
    assert names >= {"manifest.json", "model.onnx", "report.html", "tokenizer.json"}
    assert read_model_directory(model.path) == model


@pytest.fixture
def ours(tmp_path, checkpoints):
    """Save a checkpoint of Bertline with this record of its training."""

    def save(scores=None, **provenance):
        settings = ClassificationSettings(max_seq_length=16, labels=("sports", "weather", "news"))
        card = {"scores": scores or {}, "provenance": provenance}
        return save_ours(tmp_path / "ours", checkpoints["classification"], "classification", settings, **card)

    return save


def test_record_of_training_is_kept(export, ours):
    """The manifest contains the settings, scores and provenance of the task card, without the paths of its machine."""
    before = {"recipe": {"corpus": "/secret/corpus", "run_dir": "/secret/runs/mini", "learning_rate": 1e-4}}
    recipe = {
        "train": ["/secret/train.tsv", "hf:a/b"],
        "checkpoint": "/secret/mini/checkpoint",
        "columns": {"text": "a/b"},
    }
    checkpoint = ours(
        {"accuracy": 0.75},
        data={"train.tsv": "abc"},
        recipe=recipe,
        pretraining=before | {"before": before},
        before={"recipe": {"train": ["/secret/other.tsv"]}},
        cuts={"dev examples": {"num_cut": 3, "num_examples": 5, "limit": "max_seq_length 64"}},
    )

    exported = export(checkpoint)

    training = exported.manifest.provenance["training"]
    assert exported.manifest.settings.max_seq_length == 16
    assert exported.manifest.scores["checkpoint"] == {"accuracy": 0.75}
    assert training["data"] == {"train.tsv": "abc"}
    assert training["recipe"]["train"] == ["train.tsv", "hf:a/b"]
    assert training["recipe"]["columns"] == {"text": "a/b"}
    assert training["pretraining"]["recipe"] == {"corpus": "corpus", "run_dir": "mini", "learning_rate": 1e-4}
    assert training["pretraining"]["before"]["recipe"] == training["pretraining"]["recipe"]
    assert training["before"] == {"recipe": {"train": ["other.tsv"]}}
    assert not [path for path in exported.path.iterdir() if path.is_file() and b"/secret" in path.read_bytes()]
    assert "fine-tuned from `mini`" in (exported.path / "README.md").read_text()
    assert exported.manifest.truncate  # texts were truncated in the evaluation of training


def data_of(checkpoint, data=None, *, precision="fp32", task=None):
    """Return the name of the evaluation set of an export, the number of sequences to calibrate on, and the output."""
    source, lines = read_source(checkpoint, task=task), []
    options = ExportConfig(precision=precision), data or ExportData(), Reporter(lines.append)
    _, _, evaluation_set, sequences = read_data(source, source.load_model(), *options)
    return evaluation_set.name, len(sequences), lines


@pytest.mark.parametrize("task", ["classification", "embedding"])
def test_data_of_training_are_for_the_same_task(task, tmp_path, ours):
    """Dev data of training evaluate the same task, and its training data calibrate; the encoder alone needs others."""
    (train := tmp_path / "train.tsv").write_text("sentence\tlabel\ngoing home\tnews\n")
    (dev := tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe cat\tnews\nthe bakery\tsports\n")
    (given := tmp_path / "given.tsv").write_text("text\ttext_pair\tlabel\nthe cat\ta\tnews\nthe\tb\tsports\n")
    if task == "embedding":
        given.write_text("text\ttext_pair\tlabel\nthe cat\ta\t1\nthe\tb\t2\n")
    checkpoint = ours(recipe={"train": [str(train)], "dev": [str(dev)], "columns": {"text": "sentence"}})

    judged, _, _ = data_of(checkpoint, task=task)
    _, count, lines = data_of(checkpoint, ExportData(dev=(given,)), precision="int8", task=task)

    assert judged == ("2 examples of dev.tsv" if task == "classification" else "64 random sequences")
    assert count == (task == "classification")
    expected = "calibrated on train.tsv" if count else "no --train: dynamic int8 only, outputs depend on the batch"
    assert expected in lines


def test_data_that_are_not_there_are_named(tmp_path, ours):
    """With --train only, dev data of training evaluate, with their own columns; missing and remote files are named."""
    (dev := tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe cat\tnews\nthe bakery\tsports\n")
    (train := tmp_path / "other.tsv").write_text("words\tlabel\ngoing home\tnews\n")
    recipe = {"train": ["gone.tsv"], "dev": [str(dev), "lost.tsv"], "columns": {"text": "sentence"}}
    data = ExportData(train=(train,), columns=Columns(text="words"))

    judged, _, lines = data_of(ours(recipe=recipe), data, precision="int8")
    shutil.rmtree(tmp_path / "ours")
    _, _, remote = data_of(ours(recipe={"dev": ["hf:org/data,split=validation"]}))

    assert judged == "2 examples of dev.tsv"
    assert "calibrated on other.tsv" in lines
    assert "training data not found: lost.tsv; give --dev and --train" in lines
    assert "training data on the hub: hf:org/data,split=validation; give --dev and --train" in remote


def test_an_unknown_metric_is_named_before_tuning(tmp_path, export):
    """A misspelt --metric ends an export in fp32 before any variant is timed."""
    (dev := tmp_path / "dev.tsv").write_text("text\tlabel\nthe cat\tnews\nthe bakery\tsports\n")
    data, lines = ExportData(dev=(dev,), metric="rouge"), []

    with pytest.raises(ValueError, match=r"unknown --metric `rouge` \(one of: accuracy"):
        export("classification", ExportConfig(), data=data, lines=lines)
    assert not any("speed of variants" in line for line in lines)


@pytest.mark.parametrize(
    ("count", "judged", "options"),
    [
        (39, "39 texts, also used to calibrate", {}),
        (50, "25 texts, calibrated on 25 others", {}),
        (50, "3 of the 25 texts, calibrated on 25 others", {"max_examples": 3}),
        (50, "40 texts, calibrated on 10 others", {"num_calibration": 10}),
    ],
)
def test_texts_for_calibration_and_evaluation_are_disjoint(count, judged, options, tmp_path, checkpoints):
    """From 40 texts on, calibration and evaluation use different texts; fewer texts give a warning."""
    (tmp_path / "texts.txt").write_text(
        "".join(f"{chr(97 + number % 26)} cat{'s' * (number > 25)}\n" for number in range(count))
    )
    data, task = ExportData(texts=tmp_path / "texts.txt", **options), read_source(checkpoints["plain"]).task

    evaluation_set, sequences, remark = data.with_calibration(task)

    assert evaluation_set.name == judged
    assert len(evaluation_set.examples) == int(judged.split()[0])
    assert len(sequences) == (count if count < 40 else int(judged.split()[-2]))
    used = {tuple(features.input_ids) for features in sequences}
    assert (count >= 40) == used.isdisjoint(tuple(features.input_ids) for features in evaluation_set.features)
    assert ("give some hundred" in remark) == (count < 40)


@pytest.mark.parametrize("max_seq_length", [8, 40])
def test_masked_words_are_within_the_sequence_length(max_seq_length, tmp_path, checkpoints):
    """Passages are cut to the sequence length, so that every masked word is in the input."""
    (tmp_path / "dev.txt").write_text("the a b the c.\n" * 40)
    task = read_source(checkpoints["masked-lm"], task="masked-lm", settings={"max_seq_length": max_seq_length}).task

    evaluation_set = ExportData(dev=(tmp_path / "dev.txt",)).evaluation_set(task)

    masked = [
        sum(int((item.input_ids == task.tokenizer.mask_id).sum()) for item in items) for items in evaluation_set.windows
    ]
    assert masked == [len(example.tokens) for example in evaluation_set.examples]


def test_space_of_another_model_is_declared(export, exported, checkpoints):
    """--space names a space or a model directory; what has none is refused in one line."""
    theirs = exported["embedding"]
    source = read_source(checkpoints["plain"], settings={"pooling": "mean"})

    model = export("plain", replace(UNTUNED, space=str(theirs.path)), settings={"pooling": "mean"})

    weights = theirs.manifest.provenance["checkpoint"]["sha256"]
    assert theirs.manifest.space == space_of(theirs.load_task(), weights)
    assert model.manifest.space == theirs.manifest.space != source.space()
    assert source.space("0123456789abcdef") == "0123456789abcdef"
    for declared, message in ((str(exported["spans"].path), "states no space"), ("no-such", "no-such")):
        with pytest.raises(ValueError, match=message):
            source.space(declared)
    with pytest.raises(ValueError, match="the task `classification` has none"):
        read_source(checkpoints["classification"]).space("0123456789abcdef")


@pytest.mark.parametrize(
    ("task", "matmul"),
    [("embedding", "static int8"), ("classification", "dynamic int8"), ("masked-lm", "dynamic int8")],
)
def test_int8_is_close_and_its_quality_is_recorded(task, matmul, export, exported, texts_file):
    """Matmuls run on integers, and the manifest records the quality; vectors are of the space of fp32."""
    data = ExportData(texts=texts_file) if matmul == "static int8" else None

    model = export("plain" if task == "embedding" else task, int8(min_cosine=0.97), task=task, data=data)

    kinds = {node.op_type for node in onnx.load(model.model_path).graph.node}
    quality = model.manifest.scores["quality"][matmul]
    assert "MatMulIntegerToFloat" in kinds
    assert ("DynamicQuantizeLinear" in kinds) == (matmul == "dynamic int8")
    assert model.manifest.precision == "int8"
    assert model.manifest.space == exported[task].manifest.space
    assert bool(model.manifest.space) == (task == "embedding")
    assert 0.97 <= quality["mean_cosine"] < 1
    assert quality["min_cosine"] <= quality["mean_cosine"]
    assert model.manifest.scores["evaluated_on"] == (
        "16 texts, also used to calibrate" if matmul == "static int8" else "64 random sequences"
    )
    assert model.manifest.provenance["graph"]["precision"]["matmul"] == matmul


def write_wrong_graphs(monkeypatch, chosen, is_wrong):
    """Make tuning choose a configuration, and negate the outputs of written graphs for some execution settings."""

    def run_of(graph, *, execution):
        run = graph_run(graph, execution=execution)
        sign = -1 if isinstance(graph, Path) and is_wrong(execution) else 1
        return lambda arrays: {name: sign * output for name, output in run(arrays).items()}

    monkeypatch.setattr("export.pipeline.autotune", lambda *arguments, **keywords: (chosen, []))
    monkeypatch.setattr("export.pipeline.graph_run", run_of)
    return ExportConfig(precision="int8", limits=QualityLimits(min_cosine=0.9))


@pytest.mark.parametrize("attention", ["Attention", default_configuration().variant.attention])
def test_tuned_graph_below_the_limit_is_refused(attention, tmp_path, export, monkeypatch):
    """The graph is evaluated again as served; the error suggests only remedies that are left."""
    chosen = default_configuration().with_value("attention", attention)
    config = write_wrong_graphs(monkeypatch, chosen, lambda execution: True)

    with pytest.raises(
        QualityError, match=r"dynamic int8, as served: the mean cosine .* \(raise the limit, or use fp32\)"
    ):
        export("plain", config)

    assert not (tmp_path / "m").exists()


def test_default_is_written_if_the_tuned_variant_fails(export, monkeypatch):
    """Minutes of tuning do not end in an error: the default variant met the limits before."""
    chosen, lines = default_configuration().with_value("max_batch_tokens", 128), []
    config = write_wrong_graphs(monkeypatch, chosen, lambda execution: execution.max_batch_tokens == 128)

    model = export("plain", config, lines=lines)

    assert model.manifest.execution == default_configuration().execution
    assert model.manifest.scores["quality"]["dynamic int8"]["mean_cosine"] > 0.9
    assert any(line.startswith("the tuned variant misses the limits") for line in lines)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graphs_are_refused_before_they_are_tuned(precision, tmp_path, export, monkeypatch):
    """Neither parity nor quality waits for the minutes that tuning takes; no files are left."""
    monkeypatch.setattr("export.pipeline.autotune", lambda *arguments, **keywords: pytest.fail("tuned"))
    config = ExportConfig(precision=precision, limits=QualityLimits(atol=1e-12, max_drop=0, min_cosine=1))

    with pytest.raises(ParityError if precision == "fp32" else QualityError):
        export("plain", config)

    assert not (tmp_path / "m").exists()


def test_existing_version_is_replaced_atomically(tmp_path, exported, export):
    """An existing version needs --replace, and stays unchanged if its replacement fails."""
    target = tmp_path / "m/1"
    shutil.copytree(exported["embedding"].path, target)
    before = read_model_directory(target)

    with pytest.raises(ValueError, match=r"already exists: .*--replace"):
        export("plain")
    with pytest.raises(ParityError):
        export("plain", IMPOSSIBLE, replace=True)
    assert read_model_directory(target) == before

    after = export("plain", replace=True, settings={"pooling": "mean"})
    assert after.manifest.settings.pooling == "mean"
    assert [path.name for path in target.parent.iterdir()] == ["1"]


def test_command_prints_one_line_per_stage(tmp_path, checkpoints, monkeypatch, capfd):
    """The command prints a line for each stage, and nothing on standard error."""
    flags = "--precision int8 --min-cosine 0.97 --no-tune --quality default"
    settings = "--pooling mean --normalize --max-seq-length 16"

    arguments = [str(checkpoints["plain"]), str(tmp_path / "plain/7"), *flags.split(), *settings.split()]
    result = call(main, arguments, monkeypatch, capfd)

    assert result.returncode == 0
    assert result.stderr == ""
    stages = [
        "checkpoint:",
        "neither --train nor --texts: dynamic int8 only, outputs depend on the batch",
        "evaluated on",
        "fp32:",
        "dynamic int8:",
        "chosen precision: dynamic int8",
        "fp32 graph:",
        "model directory",
    ]
    assert all(line.startswith(stage) for line, stage in zip(result.stdout.splitlines(), stages, strict=True))
    assert re.search(r"dynamic int8, 0\.\d MB, mean cosine to PyTorch 0\.99\d\d$", result.stdout.strip())
    settings = read_model_directory(tmp_path / "plain/7").manifest.settings
    assert (settings.pooling, settings.normalize, settings.max_seq_length) == ("mean", True, 16)


def test_columns_of_training_are_defaults(tmp_path, ours, monkeypatch):
    """Columns of training apply to --dev unless flags give others."""
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence\tother\tlabel\nthe cat\tx\tnews\nthe bakery\ty\tsports\n")
    checkpoint = ours(recipe={"dev": ["elsewhere.tsv"], "train": [], "columns": {"text": "sentence"}})

    def export(version, *columns):
        arguments = [checkpoint, tmp_path / f"news/{version}", "--no-tune", "--dev", dev, *columns]
        monkeypatch.setattr("sys.argv", ["export", *map(str, arguments)])
        main()

    export(1)
    export(2, "--columns.text", "other")
    with pytest.raises(SystemExit, match="no column `text` \\(columns: `sentence`, `other`, `label`\\)"):
        export(3, "--columns.text", "text")

    worst = [read_model_directory(tmp_path / f"news/{version}").manifest.scores["quality"] for version in (1, 2)]
    assert worst[0] != worst[1]


@pytest.mark.parametrize(
    ("line", "chosen", "cuts"),
    [
        ("the cat\tnews", ["--truncate", "yes"], True),
        ("the cat " * 40 + "\tnews", [], True),
        ("the cat " * 40 + "\tnews", ["--truncate", "no"], False),
    ],
)
def test_model_evaluated_on_truncated_texts_truncates(line, chosen, cuts, tmp_path, checkpoints, monkeypatch, capsys):
    """A model that was evaluated on truncated texts truncates by default; card and output state this."""
    (tmp_path / "dev.tsv").write_text(f"text\tlabel\nthe mat\tsports\n{line}\n")
    path = tmp_path / "models/news/1"
    arguments = [str(checkpoints["classification"]), str(path), "--no-tune", "--dev", str(tmp_path / "dev.tsv")]
    monkeypatch.setattr("sys.argv", ["export", *arguments, *chosen])
    main()

    assert read_model_directory(path).manifest.truncate is cuts
    message = f"1 of 2 examples of dev.tsv; the server {'truncates' if cuts else 'rejects'} such texts"
    assert (message in capsys.readouterr().out) is (len(line) > 100)
    card = (path / "README.md").read_text()
    assert f"longer texts are {'truncated' if cuts else 'rejected'} unless a request says otherwise" in card
    assert ("of which 1 were truncated" in card) is (len(line) > 100)
