from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from export import ExportConfig, QualityLimits, export_checkpoint, graph_run
from export.__main__ import main
from export.evaluation_set import ExportData
from export.parity import ParityError
from export.quality_gate import QualityError
from export.reporter import Reporter
from export.source import read_source
from export.targets import default_configuration
from tasks.bundle.files import sha256
from tasks.bundle.model_directory import read_model_directory
from tasks.classification import ClassificationSettings
from tests.commands import call
from tests.export.conftest import SETTINGS
from training.checkpoint.reader import load_model
from training.checkpoint.task_card import TaskCard
from training.checkpoint.weights import checkpoint_digest
from training.checkpoint.writer import save_checkpoint as save_our_checkpoint
from training.data.columns import Columns

UNTUNED = ExportConfig(tune=False)
IMPOSSIBLE = ExportConfig(tune=False, limits=QualityLimits(atol=1e-12))


def names(directory):
    return sorted(path.name for path in directory.rglob("*")) if directory.exists() else []


def last_hidden_state(directory, arrays):
    network = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False).eval()
    with torch.inference_mode():
        return network(**{name: torch.from_numpy(array) for name, array in arrays.items()}).last_hidden_state.numpy()


def check_vectors(model, directory, arrays):
    actual, hidden = graph_run(model.model_path)(arrays)["sentence_embedding"], last_hidden_state(directory, arrays)
    mask = arrays["attention_mask"][..., None]
    expected = hidden[:, 0]
    if model.manifest.settings.pooling == "mean":
        expected = (hidden * mask).sum(1) / mask.sum(1)
    if model.manifest.settings.normalize:
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(actual, expected, atol=1e-4)


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
def test_foreign_layouts_are_exported(tmp_path, layout, save_checkpoint, random_batch, texts):
    """Graph and tokenizer of the model directory match the checkpoint, for every layout of its files."""
    directory = layout(save_checkpoint, tmp_path / "checkpoint")

    model = export_checkpoint(directory, tmp_path / "models/foreign/1", UNTUNED)

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
    assert set(names(model.path)) >= {"manifest.json", "model.onnx", "report.html", "tokenizer.json"}
    assert read_model_directory(model.path) == model


@pytest.mark.parametrize("scale", [0.0, 1e-30])
def test_tiny_vectors_are_compared(tmp_path, checkpoints, scale):
    """Zero vectors are equal, and tiny vectors have a cosine."""
    checkpoint = shutil.copytree(checkpoints["plain"], tmp_path / "checkpoint")
    weights = load_file(checkpoint / "model.safetensors")
    last = {name: value * scale for name, value in weights.items() if "layer.1.output.LayerNorm" in name}
    save_file(weights | last, checkpoint / "model.safetensors")

    quality = export_checkpoint(checkpoint, tmp_path / "models/m/1", UNTUNED).manifest.scores["quality"]

    assert quality["fp32"]["mean_cosine"] == pytest.approx(1)


def ours(path, checkpoint, scores=None, **provenance):
    """Save a checkpoint of Bertline with this record of its training."""
    settings = ClassificationSettings(max_seq_length=16, labels=("sports", "weather", "news"))
    card = TaskCard(task="classification", settings=settings, scores=scores or {}, provenance=provenance)
    save_our_checkpoint(path, load_model(checkpoint, "classification"), tokenizer_from=checkpoint, card=card)
    return path


def test_record_of_training_is_kept(tmp_path, checkpoints):
    """The manifest contains the settings, scores and provenance of the task card, without the paths of its machine."""
    before = {"recipe": {"corpus": "/secret/corpus", "run_dir": "/secret/runs/mini", "learning_rate": 1e-4}}
    recipe = {
        "train": ["/secret/train.tsv", "hf:a/b"],
        "checkpoint": "/secret/mini/checkpoint",
        "columns": {"text": "a/b"},
    }
    checkpoint = ours(
        tmp_path / "ours",
        checkpoints["classification"],
        {"accuracy": 0.75},
        data={"train.tsv": "abc"},
        recipe=recipe,
        pretraining=before | {"before": before},
        before={"recipe": {"train": ["/secret/other.tsv"]}},
    )

    exported = export_checkpoint(checkpoint, tmp_path / "news/3", UNTUNED)

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


def test_training_data_are_for_the_same_task_only(tmp_path, checkpoints):
    """Dev data of training evaluate the same task; the encoder alone is evaluated without them."""
    (dev := tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe cat\tnews\nthe bakery\tsports\n")
    recipe = {"dev": [str(dev)], "train": [], "columns": {"text": "sentence"}}
    checkpoint = ours(tmp_path / "ours", checkpoints["classification"], recipe=recipe)

    labels = export_checkpoint(checkpoint, tmp_path / "news/1", UNTUNED)
    vectors = export_checkpoint(checkpoint, tmp_path / "vectors/1", UNTUNED, task="embedding")

    assert labels.manifest.scores["evaluated_on"] == "2 examples of dev.tsv"
    assert vectors.manifest.scores["evaluated_on"] == "64 random sequences"


@pytest.mark.parametrize("task", ["classification", "embedding"])
def test_dev_alone_calibrates_on_training_data(task, tmp_path, checkpoints):
    """With --dev only, int8 is calibrated on the checkpoint's training data if the task is the same."""
    (train := tmp_path / "train.tsv").write_text("sentence\tlabel\ngoing home\tnews\n")
    (dev := tmp_path / "dev.tsv").write_text("text\ttext_pair\tlabel\nthe cat\ta\tnews\nthe\tb\tsports\n")
    if task == "embedding":
        dev.write_text("text\ttext_pair\tlabel\nthe cat\ta\t1\nthe\tb\t2\n")
    recipe = {"train": [str(train)], "columns": {"text": "sentence"}}
    checkpoint = ours(tmp_path / "ours", checkpoints["classification"], recipe=recipe)
    config, lines = ExportConfig(precision="int8", tune=False, limits=QualityLimits(max_drop=200, min_cosine=0.9)), []

    model = export_checkpoint(
        checkpoint, tmp_path / "m/1", config, task=task, data=ExportData(dev=(dev,)), reporter=Reporter(lines.append)
    )

    found = model.manifest.provenance["graph"]["precision"]["matmul"]
    assert found == ("static int8" if task == "classification" else "dynamic int8")
    assert ("calibrated on train.tsv" in lines) == (task == "classification")
    assert ("no --train: dynamic int8 only, outputs depend on the batch" in lines) == (task == "embedding")


def test_an_unknown_metric_is_named_before_tuning(tmp_path, checkpoints):
    """A misspelt --metric ends an export in fp32 before any variant is timed."""
    (dev := tmp_path / "dev.tsv").write_text("text\tlabel\nthe cat\tnews\nthe bakery\tsports\n")
    data, lines = ExportData(dev=(dev,), metric="rouge"), []

    with pytest.raises(ValueError, match=r"unknown --metric `rouge` \(one of: accuracy"):
        export_checkpoint(
            checkpoints["classification"], tmp_path / "m/1", ExportConfig(), data=data, reporter=Reporter(lines.append)
        )
    assert not any("speed of variants" in line for line in lines)


def test_data_of_the_hub_must_be_named(tmp_path, checkpoints):
    """Training data of the hub are not downloaded unasked, and the output states this."""
    checkpoint = ours(
        tmp_path / "ours", checkpoints["classification"], recipe={"dev": ["hf:org/data,split=validation"]}
    )
    lines = []

    export_checkpoint(checkpoint, tmp_path / "m/1", UNTUNED, reporter=Reporter(lines.append))

    assert "training data on the hub: hf:org/data,split=validation; give --dev and --train" in lines


def test_train_alone_evaluates_on_dev_data_of_training(tmp_path, checkpoints):
    """With --train only, the checkpoint's dev data evaluate, each with its own columns; missing files are named."""
    (dev := tmp_path / "dev.tsv").write_text("sentence\tlabel\nthe cat\tnews\nthe bakery\tsports\n")
    (train := tmp_path / "other.tsv").write_text("words\tlabel\ngoing home\tnews\n")
    recipe = {"train": ["gone.tsv"], "dev": [str(dev), "lost.tsv"], "columns": {"text": "sentence"}}
    checkpoint = ours(tmp_path / "ours", checkpoints["classification"], recipe=recipe)
    config, lines = ExportConfig(precision="int8", tune=False, limits=QualityLimits(max_drop=200, min_cosine=0.9)), []
    data = ExportData(train=(train,), columns=Columns(text="words"))

    model = export_checkpoint(checkpoint, tmp_path / "m/1", config, data=data, reporter=Reporter(lines.append))

    assert model.manifest.scores["evaluated_on"] == "2 examples of dev.tsv"
    assert "calibrated on other.tsv" in lines
    assert "training data not found: lost.tsv; give --dev and --train" in lines


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


@pytest.mark.parametrize(
    ("task", "matmul"),
    [
        *((task, "static int8") for task in ("embedding", "tagging", "spans")),
        *((task, "dynamic int8") for task in ("classification", "multiple-choice", "masked-lm")),
    ],
)
def test_int8_is_close_and_its_quality_is_recorded(tmp_path, task, matmul, checkpoints, texts):
    """Matmuls run on integers, and the manifest records the quality."""
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n")
    checkpoint = checkpoints["plain" if task == "embedding" else task]
    data = ExportData(texts=tmp_path / "texts.txt") if matmul == "static int8" else ExportData()
    config = ExportConfig(precision="int8", tune=False, limits=QualityLimits(min_cosine=0.97))

    model = export_checkpoint(
        checkpoint, tmp_path / "small/2", config, task=task, settings=SETTINGS.get(task), data=data
    )

    kinds = {node.op_type for node in onnx.load(model.model_path).graph.node}
    quality = model.manifest.scores["quality"][matmul]
    assert "MatMulIntegerToFloat" in kinds
    assert ("DynamicQuantizeLinear" in kinds) == (matmul == "dynamic int8")
    assert model.manifest.precision == "int8"
    assert 0.97 <= quality["mean_cosine"] < 1
    assert quality["min_cosine"] <= quality["mean_cosine"]
    assert model.manifest.scores["evaluated_on"] == (
        "4 texts, also used to calibrate" if matmul == "static int8" else "64 random sequences"
    )
    assert model.manifest.provenance["graph"]["precision"]["matmul"] == matmul


@pytest.mark.parametrize("attention", ["Attention", default_configuration().variant.attention])
def test_tuned_graph_below_the_limit_is_refused(attention, tmp_path, checkpoints, monkeypatch):
    """The graph is evaluated again as served; the error suggests only remedies that are left."""

    def wrong_in_the_file(graph, *, execution):
        run = graph_run(graph, execution=execution)
        sign = -1 if isinstance(graph, Path) else 1
        return lambda arrays: {name: sign * output for name, output in run(arrays).items()}

    chosen = default_configuration().with_value("attention", attention)
    monkeypatch.setattr("export.pipeline.autotune", lambda *arguments, **keywords: (chosen, []))
    monkeypatch.setattr("export.pipeline.graph_run", wrong_in_the_file)
    config = ExportConfig(precision="int8", limits=QualityLimits(min_cosine=0.9))

    with pytest.raises(
        QualityError, match=r"dynamic int8, as served: the mean cosine .* \(raise the limit, or use fp32\)"
    ):
        export_checkpoint(checkpoints["plain"], tmp_path / "small/1", config)

    assert not (tmp_path / "small").exists()


def test_default_is_written_if_the_tuned_variant_fails(tmp_path, checkpoints, monkeypatch):
    """Minutes of tuning do not end in an error: the default variant met the limits before."""

    def wrong_in_the_first_file(graph, *, execution):
        run = graph_run(graph, execution=execution)
        sign = -1 if isinstance(graph, Path) and execution.max_batch_tokens == 128 else 1
        return lambda arrays: {name: sign * output for name, output in run(arrays).items()}

    chosen, lines = default_configuration().with_value("max_batch_tokens", 128), []
    monkeypatch.setattr("export.pipeline.autotune", lambda *arguments, **keywords: (chosen, []))
    monkeypatch.setattr("export.pipeline.graph_run", wrong_in_the_first_file)
    config = ExportConfig(precision="int8", limits=QualityLimits(min_cosine=0.9))

    model = export_checkpoint(checkpoints["plain"], tmp_path / "small/1", config, reporter=Reporter(lines.append))

    assert model.manifest.execution == default_configuration().execution
    assert model.manifest.scores["quality"]["dynamic int8"]["mean_cosine"] > 0.9
    assert any(line.startswith("the tuned variant misses the limits") for line in lines)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_graphs_are_refused_before_they_are_tuned(precision, tmp_path, checkpoints, monkeypatch):
    """Neither parity nor quality waits for the minutes that tuning takes; no files are left."""

    def tune(*arguments, **keywords):
        raise AssertionError("tuned")

    monkeypatch.setattr("export.pipeline.autotune", tune)
    config = ExportConfig(precision=precision, limits=QualityLimits(atol=1e-12, max_drop=0, min_cosine=1))

    with pytest.raises(ParityError if precision == "fp32" else QualityError):
        export_checkpoint(checkpoints["plain"], tmp_path / "small/1", config)

    assert not (tmp_path / "small").exists()


def test_existing_version_is_replaced_atomically(tmp_path, exported, checkpoints):
    """An existing version needs --replace, and stays unchanged if its replacement fails."""
    target = tmp_path / "plain/1"
    shutil.copytree(exported["embedding"].path, target)
    before = read_model_directory(target)

    with pytest.raises(ValueError, match=r"already exists: .*--replace"):
        export_checkpoint(checkpoints["plain"], target)
    with pytest.raises(ParityError):
        export_checkpoint(checkpoints["plain"], target, IMPOSSIBLE, replace=True)
    assert read_model_directory(target) == before

    after = export_checkpoint(checkpoints["plain"], target, UNTUNED, replace=True, settings={"pooling": "mean"})
    assert after.manifest.settings.pooling == "mean"
    assert [path.name for path in target.parent.iterdir()] == ["1"]


def test_export_needs_no_network(tmp_path, checkpoints, monkeypatch):
    """The export opens no socket."""

    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert export_checkpoint(checkpoints["plain"], tmp_path / "offline/1", UNTUNED).path.is_dir()


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


def test_columns_of_training_are_defaults(tmp_path, checkpoints, monkeypatch):
    """Columns of training apply to --dev unless flags give others."""
    dev = tmp_path / "dev.tsv"
    dev.write_text("sentence\tother\tlabel\nthe cat\tx\tnews\nthe bakery\ty\tsports\n")
    recipe = {"dev": ["elsewhere.tsv"], "train": [], "columns": {"text": "sentence"}}
    checkpoint = ours(tmp_path / "ours", checkpoints["classification"], recipe=recipe)

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
        ("the cat\tnews", [], False),
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


def test_model_trained_with_truncated_texts_truncates(tmp_path, checkpoints):
    """Truncated texts in the evaluation of training count, too, if the export evaluates nothing."""
    cuts = {"dev examples": {"num_cut": 3, "num_examples": 5, "limit": "max_seq_length 64"}}
    checkpoint = ours(tmp_path / "ours", checkpoints["classification"], cuts=cuts)

    assert export_checkpoint(checkpoint, tmp_path / "news/1", UNTUNED).manifest.truncate
