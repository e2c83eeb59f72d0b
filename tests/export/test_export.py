from __future__ import annotations

import shutil
import socket
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
import transformers

from export import export_checkpoint, ort_run
from export.__main__ import read_texts
from export.parity import Limits, ParityError
from tasks.classification import ClassificationSettings
from tasks.files import sha256
from tasks.manifest import read_model_directory
from training.checkpoint import TaskCard, checkpoint_digest, load_model
from training.checkpoint import save_checkpoint as save_our_checkpoint

IMPOSSIBLE = Limits(atol=1e-12)


def names(directory):
    return sorted(path.name for path in directory.rglob("*")) if directory.exists() else []


def last_hidden_state(directory, arrays):
    network = transformers.BertModel.from_pretrained(directory, add_pooling_layer=False).eval()
    with torch.inference_mode():
        return network(**{name: torch.from_numpy(array) for name, array in arrays.items()}).last_hidden_state.numpy()


def check_hidden_states(model, directory, arrays):
    actual = ort_run(model.model_path)(arrays)["last_hidden_state"]
    mask = arrays["attention_mask"].astype(bool)
    np.testing.assert_allclose(actual[mask], last_hidden_state(directory, arrays)[mask], atol=1e-4)


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
def test_foreign_layouts_export(tmp_path, layout, save_checkpoint, random_batch, texts):
    """Whatever the layout, the model directory has the graph and the tokenizer of the checkpoint."""
    directory = layout(save_checkpoint, tmp_path / "checkpoint")

    model = export_checkpoint(directory, tmp_path / "models/foreign/1")

    check_hidden_states(model, directory, random_batch(3, 9))
    theirs = transformers.BertTokenizerFast.from_pretrained(directory)
    texts = [*texts, "The BAKERY é"]
    tokens = model.load_task().tokenizer.tokenize(texts)
    assert [item.ids.tolist() for item in tokens] == theirs(texts, add_special_tokens=False)["input_ids"]


def test_encoder_of_any_checkpoint_can_be_exported(tmp_path, checkpoints, random_batch):
    """A classifier gives embeddings, too, when asked."""
    model = export_checkpoint(checkpoints["classification"], tmp_path / "encoder/1", task="embedding")

    check_hidden_states(model, checkpoints["classification"], random_batch(2, 5))


def test_sentence_transformers_folder_exports(tmp_path, save_sentence_transformer, random_batch):
    """Its pooling travels in the manifest."""
    directory = save_sentence_transformer(tmp_path / "st", at="0_Transformer")

    model = export_checkpoint(directory, tmp_path / "models/st/1")

    assert model.manifest.settings.pooling == "mean"
    check_hidden_states(model, directory / "0_Transformer", random_batch(2, 5))


def test_manifest_says_where_the_model_came_from(exported, checkpoints):
    """Digests, versions, recipe and scores are recorded, and the manifest reads back as written."""
    model = exported["embedding"]
    manifest = model.manifest

    assert (manifest.name, manifest.version, manifest.task, manifest.precision) == ("plain", "1", "embedding", "fp32")
    assert (manifest.opset, manifest.hidden_size, manifest.vocab_size) == (17, 32, 65)
    assert manifest.files == {name: sha256(model.path / name) for name in ("model.onnx", "tokenizer.json")}
    assert manifest.provenance["checkpoint"]["sha256"] == checkpoint_digest(checkpoints["plain"])
    assert manifest.provenance["checkpoint"]["name"] == "plain"
    assert manifest.provenance["versions"]["onnx"] == onnx.__version__
    assert manifest.scores["fp32_difference"]["last_hidden_state"] <= 1e-4
    assert names(model.path) == ["manifest.json", "model.onnx", "tokenizer.json"]
    assert read_model_directory(model.path) == model


def test_scores_and_provenance_of_our_checkpoint_travel_along(tmp_path, checkpoints):
    """What training recorded is in the manifest."""
    labels = ("sports", "weather", "news")
    card = TaskCard(
        task="classification",
        settings=ClassificationSettings(max_seq_length=16, labels=labels),
        scores={"accuracy": 0.75},
        provenance={"data": "abc"},
    )
    model = load_model(checkpoints["classification"], "classification")
    save_our_checkpoint(tmp_path / "ours", model, tokenizer_from=checkpoints["classification"], card=card)

    manifest = export_checkpoint(tmp_path / "ours", tmp_path / "news/3").manifest

    assert manifest.settings == card.settings
    assert manifest.scores["checkpoint"] == {"accuracy": 0.75}
    assert manifest.provenance["training"] == {"data": "abc"}


@pytest.mark.parametrize("task", ["embedding", "classification", "spans", "masked-lm"])
def test_int8_is_close_and_its_cosine_is_recorded(tmp_path, task, checkpoints, texts):
    """The products are integers, and the manifest says what that cost."""
    model = export_checkpoint(
        checkpoints["plain" if task == "embedding" else task],
        tmp_path / "small/2",
        precision="int8",
        task=task,
        texts=texts,
        settings={"max_query_length": 16} if task == "spans" else None,
        limits=Limits(min_cosine=0.98),
    )

    kinds = {node.op_type for node in onnx.load(model.model_path).graph.node}
    assert "MatMulInteger" in kinds
    assert model.manifest.precision == "int8"
    assert 0.98 <= model.manifest.scores["mean_cosine"] < 1
    assert model.manifest.scores["min_cosine"] <= model.manifest.scores["mean_cosine"]
    assert model.manifest.scores["compared_on"] == "texts"
    assert "quantisation" in model.manifest.provenance["recipe"]


def test_int8_graph_below_the_limit_is_refused(tmp_path, checkpoints):
    """Quality is a gate, not a note."""
    with pytest.raises(ParityError, match="mean cosine"):
        export_checkpoint(
            checkpoints["plain"], tmp_path / "small/1", precision="int8", limits=Limits(min_cosine=0.9999999)
        )

    assert names(tmp_path / "small") == []


def test_refused_graph_leaves_nothing_behind(tmp_path, checkpoints):
    """A version directory is whole or absent, hidden ones included."""
    with pytest.raises(ParityError, match="last_hidden_state"):
        export_checkpoint(checkpoints["plain"], tmp_path / "models/plain/1", limits=IMPOSSIBLE)

    assert names(tmp_path / "models/plain") == []


def test_existing_version_stays_until_its_successor_is_whole(tmp_path, exported, checkpoints):
    """Without --replace it is refused; a failed replacement changes nothing; a good one takes its place."""
    target = tmp_path / "plain/1"
    shutil.copytree(exported["embedding"].path, target)
    before = read_model_directory(target)

    with pytest.raises(ValueError, match=r"already exists: .*--replace"):
        export_checkpoint(checkpoints["plain"], target)
    with pytest.raises(ParityError):
        export_checkpoint(checkpoints["plain"], target, replace=True, limits=IMPOSSIBLE)
    assert read_model_directory(target) == before

    after = export_checkpoint(checkpoints["plain"], target, replace=True, settings={"pooling": "mean"})
    assert after.manifest.settings.pooling == "mean"
    assert [path.name for path in target.parent.iterdir()] == ["1"]


def test_export_needs_no_network(tmp_path, checkpoints, monkeypatch):
    """No socket is opened, whatever the environment says."""

    def refuse(*_):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)

    assert export_checkpoint(checkpoints["plain"], tmp_path / "offline/1").path.is_dir()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        (["config.json"], "has no config.json"),
        (["tokenizer.json", "vocab.txt"], "a checkpoint needs its tokenizer"),
        (["model.safetensors"], "no weights in"),
    ],
)
def test_missing_files_are_named(tmp_path, checkpoints, missing, message):
    """One line, and nothing is written."""
    directory = shutil.copytree(checkpoints["plain"], tmp_path / "checkpoint")
    for name in missing:
        (directory / name).unlink()

    with pytest.raises(ValueError, match=message) as caught:
        export_checkpoint(directory, tmp_path / "models/plain/1")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "models").exists()


def test_wrong_arguments_are_named(tmp_path, checkpoints):
    """Precision and model directory are checked before any work."""
    with pytest.raises(ValueError, match="unknown precision: `fp4`"):
        export_checkpoint(checkpoints["plain"], tmp_path / "plain/1", precision="fp4")
    with pytest.raises(ValueError, match="whole number as version"):
        export_checkpoint(checkpoints["plain"], tmp_path / "plain/latest")


def test_texts_are_lines(tmp_path):
    """Empty lines are left out; a file without text, or not of text, is refused."""
    (tmp_path / "texts").write_text("one\n\n two\n", encoding="utf-8")
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")

    assert read_texts(tmp_path / "texts") == ["one", " two"]
    with pytest.raises(ValueError, match="no texts in"):
        read_texts(tmp_path / "empty")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_texts(tmp_path / "bytes")


def run_command(*arguments):
    command = [sys.executable, "-m", "export", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_writes_a_model_directory_and_nothing_else_on_the_terminal(tmp_path, checkpoints):
    """A line a stage on standard output, silence on standard error."""
    flags = ["--precision", "int8", "--pooling", "mean", "--normalize", "--max-seq-length", "16"]

    result = run_command(checkpoints["plain"], tmp_path / "plain/7", *flags)

    assert result.returncode == 0
    assert result.stderr == ""
    stages = ["checkpoint:", "fp32 graph:", "int8 graph:", "model directory"]
    assert [line.startswith(stage) for line, stage in zip(result.stdout.splitlines(), stages, strict=True)] == [
        True
    ] * 4
    settings = read_model_directory(tmp_path / "plain/7").manifest.settings
    assert (settings.pooling, settings.normalize, settings.max_seq_length) == ("mean", True, 16)


def test_mistakes_of_the_user_get_one_line(tmp_path):
    """On standard error, with a non-zero exit."""
    result = run_command(tmp_path / "nowhere", tmp_path / "plain/1")

    assert result.returncode == 1
    assert result.stderr.startswith("error: not a checkpoint: `")
    assert len(result.stderr.splitlines()) == 1
