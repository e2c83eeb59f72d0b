"""Mistakes of users: one line, exit code 1, and no files left."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import onnx
import pytest
import torch
from safetensors.torch import load_file, save_file

from export.__main__ import main, run_command
from tasks.bundle.files import sha256
from tests.export.conftest import changed


def weights(function, *arguments):
    def change(directory):
        path = directory / "model.safetensors"
        save_file({name: function(value, *arguments) for name, value in load_file(path).items()}, path)

    return change


def content(name, data):
    return lambda directory: (directory / name).write_bytes(data)


def truncated(directory):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def without_numbers(directory):
    weights = load_file(directory / "model.safetensors")
    weights["classifier.bias"] = torch.full_like(weights["classifier.bias"], torch.nan)
    save_file(weights, directory / "model.safetensors")


class RunsCode:
    def __reduce__(self):
        return os.system, ("exit 1",)


def pickled(directory):
    (directory / "model.safetensors").unlink()
    torch.save({"weights": RunsCode()}, directory / "pytorch_model.bin")


CHECKPOINTS = {
    "gone": (shutil.rmtree, "there is no such directory"),
    "broken JSON": (content("config.json", b'{"a":'), r"broken JSON in `.*config\.json`"),
    "truncated": (truncated, r"cannot read weights `.*model\.safetensors`"),
    "no numbers": (without_numbers, "`classifier.bias` has NaN or infinite values"),
    "pickled code": (pickled, "it holds more than plain tensors, which could run code"),
    "layers lacking": (changed("config.json", num_hidden_layers=3), r"lacks `bert\.encoder\.layer\.2\."),
    "layers left": (changed("config.json", num_hidden_layers=1), "which is not part of a `bert` with its config.json"),
    "another network": (
        changed("config.json", model_type="gpt2"),
        r"unsupported encoder: .* has model_type `gpt2` \(supported: bert, ",
    ),
    "gap in the labels": (
        changed("config.json", id2label={"0": "a", "2": "b", "3": "c"}),
        "must name a label for each number from 0",
    ),
    "overflow": (weights(lambda value: value * 1e30), r"the network's output `logits` is not finite, even in PyTorch"),
    "beginnings cut off": (
        changed("tokenizer_config.json", truncation_side="left"),
        r"truncation_side `left` in `.*tokenizer_config\.json`",
    ),
}


def error_line(monkeypatch, *arguments):
    """Return the error line of a command that fails."""
    monkeypatch.setattr("sys.argv", ["export", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    line = ended.value.code
    assert isinstance(line, str)
    assert line.startswith("error: ")
    assert "\n" not in line
    return line


@pytest.mark.parametrize("mistake", CHECKPOINTS)
def test_broken_checkpoints(mistake, tmp_path, checkpoints, monkeypatch):
    """The error states what is wrong with the checkpoint."""
    change, message = CHECKPOINTS[mistake]
    directory = shutil.copytree(checkpoints["classification"], tmp_path / "checkpoint")
    change(directory)

    line = error_line(monkeypatch, directory, tmp_path / "models/news/1", "--no-tune")

    assert re.search(message, line), line
    assert not (tmp_path / "models").exists()


DATA = {
    "of another task": ("dev.json", b'{"data": [{"paragraphs": []}]}', "which the task `spans` reads"),
    "with another label": (
        "dev.tsv",
        b"text\tlabel\nthe cat\tpolitics\n",
        "(rename labels with --labels, in the order of the logits)",
    ),
    "binary": ("dev.tsv", bytes(range(256)), "NUL byte"),
}


@pytest.mark.parametrize(("mistake", "flag"), [*((name, "--dev") for name in DATA), ("binary", "--train")])
def test_broken_data(mistake, flag, tmp_path, checkpoints, monkeypatch):
    """The error names the file and what is wrong in it."""
    name, data, message = DATA[mistake]
    (tmp_path / name).write_bytes(data)

    line = error_line(
        *(monkeypatch, checkpoints["classification"], tmp_path / "models/news/1", "--no-tune", "--precision", "int8"),
        *(flag, tmp_path / name),
    )

    assert message in line
    assert name in line
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-examples", "0"], "--max-examples must be at least 1: `0`"),
        (["--mixed"], "--mixed needs --precision int8"),
        (["--texts", "a.txt", "--dev", "b.tsv"], "--texts conflicts with --dev and --train"),
        (["--metric", "matthews"], "--metric `matthews` needs scores: give --dev"),
        (["--task", "multiple-choice"], "cannot do `multiple-choice`: it has the head of a `BertForSequence"),
        (["--labels", "a", "b"], "`classifier.weight` is of 3 labels, and 2 are named (--labels)"),
    ],
)
def test_wrong_flags(flags, message, tmp_path, checkpoints, monkeypatch):
    """The error names the flag."""
    line = error_line(monkeypatch, checkpoints["classification"], tmp_path / "models/news/1", "--no-tune", *flags)

    assert message in line
    assert not (tmp_path / "models").exists()


def test_only_model_directories_are_overwritten(tmp_path, checkpoints, monkeypatch):
    """Checkpoints, folders in them and other folders are never replaced."""
    checkpoint = shutil.copytree(checkpoints["plain"], tmp_path / "a/1")
    (tmp_path / "b/1").mkdir(parents=True)
    (tmp_path / "b/1/precious").write_text("x")
    (tmp_path / "c/1").mkdir(parents=True)
    (tmp_path / "c/1/manifest.json").write_text("my own")
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))

    for target in (checkpoint, checkpoint / "models/1"):
        assert "overlap; write to another place" in error_line(monkeypatch, checkpoint, target, "--replace")
    assert "is not a model directory" in error_line(monkeypatch, checkpoint, tmp_path / "b/1", "--replace")
    assert "is not a model directory" in error_line(monkeypatch, checkpoint, tmp_path / "b/1")
    assert "is not a model directory" in error_line(monkeypatch, checkpoint, tmp_path / "c/1", "--replace")
    assert "cannot use" in error_line(monkeypatch, checkpoint, tmp_path / "file/1", "--no-tune")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("name", "flag", "message"),
    [
        ("notes", None, r"--replace would delete files in `.*` that no export wrote \(`1_Pooling/notes`, `notes`\)"),
        ("texts", "--texts", r"--replace would delete `.*texts`, which the export reads"),
        ("vocab.txt", "--texts", r"--replace would delete `.*vocab\.txt`, which the export reads"),
    ],
)
def test_files_of_users_in_a_model_directory_are_kept(
    name, flag, message, tmp_path, checkpoints, exported, monkeypatch
):
    """--replace refuses to delete files that no export wrote, or that the export reads."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    (directory / name).write_text("the cat")
    flags = [flag, directory / name] if flag else []
    if not flag:
        (directory / "1_Pooling" / name).write_text("the dog")

    line = error_line(monkeypatch, checkpoints["plain"], directory, "--replace", "--no-tune", *flags)

    assert re.search(message, line), line
    assert (directory / name).read_text() == "the cat"


@pytest.mark.usefixtures("untimed")
def test_links_to_model_directories_stay_links(tmp_path, checkpoints, exported, monkeypatch):
    """The target of a link is replaced and tuned."""
    link = tmp_path / "models/plain/1"
    link.parent.mkdir(parents=True)
    link.symlink_to(shutil.copytree(exported["embedding"].path, tmp_path / "real/7"))
    for arguments in ([checkpoints["plain"], link, "--no-tune", "--replace"], ["tune", link]):
        before = (tmp_path / "real/7").stat().st_ino
        monkeypatch.setattr("sys.argv", ["export", *map(str, arguments)])
        main()

        assert link.is_symlink()
        assert (tmp_path / "real/7").stat().st_ino != before
        assert [path.name for path in (*link.parent.iterdir(), *(tmp_path / "real").iterdir())] == ["1", "7"]


def test_full_disk_leaves_nothing(tmp_path, checkpoints, monkeypatch):
    """On a full disk, the error names the directory, not a temporary one, and no files are left."""

    def full(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("export.pipeline.save_graph", full)
    line = error_line(monkeypatch, checkpoints["plain"], tmp_path / "models/plain/1", "--no-tune")

    assert line == f"error: cannot use `{tmp_path / 'models/plain/1'}`: No space left on device"
    assert not (tmp_path / "models").exists()


def test_lack_of_memory_is_reported(exported, tmp_path, monkeypatch):
    """Lack of memory is not reported as an edited manifest."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")

    def lack(*arguments, **keywords):
        raise MemoryError

    monkeypatch.setattr("onnxruntime.InferenceSession", lack)

    assert "not enough memory" in error_line(monkeypatch, "tune", directory)


def manifest(*keys, value=None):
    """Change a value in a manifest, or remove it."""

    def change(directory):
        values = record = json.loads((directory / "manifest.json").read_text())
        for key in keys[:-1]:
            record = record[key]
        if value is None:
            del record[keys[-1]]
        else:
            record[keys[-1]] = value
        (directory / "manifest.json").write_text(json.dumps(values))

    return change


def signed(change):
    """Change files, and write their digests into the manifest."""

    def change_and_sign(directory):
        change(directory)
        names = ("model.onnx", "tokenizer.json")
        manifest("files", value={name: sha256(directory / name) for name in names})(directory)

    return change_and_sign


def elsewhere(directory):
    proto = onnx.load(directory / "model.onnx")
    tensor = next(item for item in proto.graph.initializer if item.name == "bert.embeddings.norm.weight")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret")
    (directory / "model.onnx").write_bytes(proto.SerializeToString())


PROVENANCE = {
    "task": (manifest("task", value="regression"), "broken manifest"),
    "length": (
        manifest("settings", "max_seq_length", value=1000),
        r"has 40 positions, fewer than max_seq_length `1000`",
    ),
    "precision": (manifest("precision", value="int8"), None),
    "layers": (manifest("provenance", "checkpoint", "config", "num_hidden_layers", value=3), None),
    "quality": (manifest("scores", "quality"), None),
    "empty": (signed(content("model.onnx", b"")), None),
    "weights elsewhere": (signed(elsewhere), r"reads weights from `../../secret`"),
    "a pipe": (lambda directory: os.mkfifo(directory / "pipe"), r"cannot copy `.*pipe`: .* is a named pipe"),
}


@pytest.mark.parametrize("mistake", PROVENANCE)
def test_edited_model_directories_are_not_tuned(mistake, exported, tmp_path, monkeypatch):
    """Edits are found before anything is timed, and no file changes."""
    change, message = PROVENANCE[mistake]
    directory = shutil.copytree(exported["classification"].path, tmp_path / "news/1")
    change(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
    monkeypatch.setattr(
        "export.autotune.model_directory.autotune", lambda *arguments, **keywords: pytest.fail("timed for nothing")
    )

    line = error_line(monkeypatch, "tune", directory)

    assert re.search(message or r"`.*model\.onnx` does not match its manifest: .* export the model again", line), line
    assert {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()} == before
    assert [path.name for path in directory.parent.iterdir()] == ["1"]


def test_graphs_of_other_directories_are_not_tuned(exported, exported_int8, tmp_path, monkeypatch):
    """A graph that does not match its manifest is refused, even if its digest does."""
    fp32, masked = exported["classification"].path, exported["masked-lm"].path
    int8 = exported_int8.path
    for number, (graph_of, directory_of) in enumerate([(fp32, int8), (int8, fp32), (masked, fp32)]):
        directory = shutil.copytree(directory_of, tmp_path / f"news/{number}")
        signed(lambda there, graph_of=graph_of: shutil.copy(graph_of / "model.onnx", there))(directory)

        assert "model.onnx` does not match its manifest" in error_line(monkeypatch, "tune", directory)


@pytest.mark.usefixtures("untimed")
def test_current_directory_is_tuned(exported, tmp_path, monkeypatch):
    """`.` can be tuned; broken links and other folders in it stay."""
    directory = shutil.copytree(exported["embedding"].path, tmp_path / "plain/1")
    (directory / "link").symlink_to("nowhere")
    (directory / "onnx").mkdir()
    (directory / "onnx/model.onnx").write_text("mine")
    monkeypatch.chdir(directory)
    monkeypatch.setattr("sys.argv", ["export", "tune", "."])

    main()

    assert (directory / "link").is_symlink()
    assert (directory / "onnx/model.onnx").read_text() == "mine"
    assert [path.name for path in directory.parent.iterdir()] == ["1"]


def with_default_signals():
    """Restore default signal handlers, as nohup ignores some."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_interrupt_leaves_nothing(number, tmp_path, checkpoints):
    """Signals that end the process while variants are timed leave no files."""
    command = [sys.executable, "-u", "-m", "export", str(checkpoints["plain"]), str(tmp_path / "models/plain/1")]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=with_default_signals,
    )
    while not process.stdout.readline().startswith("attention: "):
        pass
    process.send_signal(number)
    _, error = process.communicate(timeout=60)

    assert process.returncode == 128 + number, error
    assert error == ""
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("words", [[], ["tune"]])
def test_help_names_the_module_that_was_called(words, monkeypatch, capsys):
    """The help of the wheel's export has commands that run where the wheel is installed."""
    monkeypatch.setattr("sys.argv", ["export", *words, "--help"])
    with pytest.raises(SystemExit):
        run_command("bertline_server.export")
    text = capsys.readouterr().out

    assert " ".join(["usage: python -m bertline_server.export", *words]) in text
    assert "python -m export" not in text
