"""Tests of checkpoints of the Hugging Face hub: a local server speaks its API, the client is the real one."""

import errno
import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import transformers
from huggingface_hub import constants, snapshot_download

from export.__main__ import main as export
from tests.commands import call
from tests.hub import NAME, TOKEN, Repository, leftovers, refusal
from tests.toy import write_classification
from training.checkpoint.hub import hub_origin, recorded_name, resolve_checkpoint
from training.checkpoint.hub_download import needed_files
from training.checkpoint.reader import load_model, load_tokenizer
from training.checkpoint.task_card import read_task_card
from training.evaluate import main as evaluate
from training.finetune import main as finetune
from training.loop.distributed import CPU, World, resolve_on_all


def test_a_name_is_downloaded_once(hub, tiny, capfd):
    """Only needed and new files are downloaded; a branch is looked up each time, a commit that is there never again."""
    path = resolve_checkpoint(NAME)

    commit = hub.repositories[NAME].commit
    assert sorted(hub.downloads()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert hub.downloads()[-1] == "model.safetensors"
    assert (path / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    assert hub_origin(path).name == NAME
    assert recorded_name(path) == f"{NAME}@{commit}"
    assert f"downloading `{NAME}`, commit {commit[:12]}" in capfd.readouterr().err
    load_model(path, "embedding")
    load_tokenizer(path)
    hub.requests.clear()
    assert resolve_checkpoint(f"{NAME}@{commit}") == resolve_checkpoint(NAME, commit) == path
    assert hub.requests == []
    assert resolve_checkpoint(NAME) == path
    assert hub.downloads() == []
    hub.repositories[NAME].files["config.json"] += b"\n"
    assert resolve_checkpoint(f"{NAME}@main") != path
    assert hub.downloads() == ["config.json"]


def test_a_path_wins(hub, tmp_path):
    """An existing path is never looked up on the hub; a path with another form than a repository's neither."""
    (tmp_path / NAME).mkdir(parents=True)

    assert resolve_checkpoint(NAME) == Path(NAME)
    assert resolve_checkpoint("a/b/c") == Path("a/b/c")
    assert resolve_checkpoint("bert-base") == Path("bert-base")
    assert resolve_checkpoint("../other") == Path("../other")
    assert hub.requests == []
    assert "--revision `main` is for repositories" in refusal(NAME, "main")


def test_revisions(hub):
    """An unknown revision and two different ones are refused; an impossible one before it becomes a path."""
    assert refusal(f"{NAME}@v9") == f"`{NAME}` has no revision `v9`; give a branch, a tag or a whole commit"
    hub.requests.clear()
    assert "contradict" in refusal(f"{NAME}@a", "b")
    for revision in ("", "../../other", "a/../b", "/etc/x", "a//b", ".", "a b", "a\n"):
        assert "is no revision of" in refusal(f"{NAME}@{revision}")
        assert "is no revision of" in refusal(NAME, revision)
    assert hub.requests == []


def test_missing_private_and_gated(hub, monkeypatch):
    """Private and gated repositories need a token; it is never sent to the storage of large files."""
    hub.repositories["org/private"] = Repository(hub.repositories[NAME].files, is_private=True)
    hub.repositories["org/gated"] = Repository(hub.repositories[NAME].files, is_gated=True)

    assert refusal("org/absent") == (
        f"no checkpoint at `org/absent`: there is no such directory here and no such repository on {hub.url}; "
        "check the name, and set HF_TOKEN if it is private"
    )
    assert "no such repository" in refusal("org/private")
    assert refusal("org/gated") == (
        f"`org/gated` is gated: accept its terms at {hub.url}/org/gated, and set HF_TOKEN to a token of your account"
    )
    monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
    assert "rejects the token" in refusal("org/private")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert "no such repository" in refusal("org/absent")
    for name in ("org/private", "org/gated"):
        load_model(resolve_checkpoint(name), "embedding")
    storage = [headers for _, path, headers in hub.requests if path.startswith("/storage/")]
    assert storage
    assert not any("authorization" in headers for headers in storage)


def test_renamed(hub, capfd):
    """A renamed repository is found under its old name, and recorded under the new one."""
    hub.moved["old/name"] = NAME

    path = resolve_checkpoint("old/name")

    assert f"note: `old/name` is now `{NAME}` on the hub" in capfd.readouterr().err
    assert hub_origin(path).name == NAME


def test_downloads_that_break_off_go_on(hub, tiny, monkeypatch):
    """A connection that breaks in the middle of a file goes on where it stopped."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)
    hub.cuts = [1000, 500]

    path = resolve_checkpoint(NAME)

    assert (path / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    ranges = [headers.get("range") for _, path, headers in hub.requests if path.startswith("/storage/")]
    assert ranges == [None, "bytes=1000-", "bytes=1500-"]


def test_truncated_downloads_are_noticed(hub, tmp_path, tiny):
    """After several broken connections, one line; nothing looks whole, and the next command goes on."""
    hub.cuts = [100] * 3

    assert f"the download of `{NAME}` broke off (IncompleteRead(" in refusal()
    assert "model.safetensors" not in leftovers(tmp_path)
    path = resolve_checkpoint(NAME)
    assert (path / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()


def test_damaged_downloads_are_removed(hub, tmp_path):
    """A file with another digest than the hub states is removed, also if it came in two parts."""
    hub.damage = hub.repositories[NAME].files["model.safetensors"][-8:]

    line = f"`model.safetensors` of `{NAME}` arrived damaged and was removed; run the command again"
    assert refusal() == line
    assert "model.safetensors" not in leftovers(tmp_path)
    assert not list(tmp_path.glob("cache/models--*/blobs/*.incomplete"))
    hub.damage = b""
    load_model(resolve_checkpoint(NAME), "embedding")


@pytest.mark.parametrize("extra", [0, 100])
def test_a_wrong_rest_is_removed(hub, tmp_path, extra):
    """The rest of a download by another program, as long as the file or longer, is noticed and removed."""
    data = hub.repositories[NAME].files["model.safetensors"]
    blobs = tmp_path / "cache" / f"models--{NAME.replace('/', '--')}" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{hashlib.sha256(data).hexdigest()}.incomplete").write_bytes(bytes(len(data) + extra))

    assert "arrived damaged" in refusal()
    load_model(resolve_checkpoint(NAME), "embedding")


def test_offline(hub, monkeypatch, capfd):
    """With HF_HUB_OFFLINE, the cache is read without a request; what is not there is refused in one line."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "unset HF_HUB_OFFLINE to download it" in refusal()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    path = resolve_checkpoint(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    capfd.readouterr()

    assert resolve_checkpoint(NAME) == path
    assert resolve_checkpoint(NAME, path.name) == path
    assert hub.requests == []
    assert capfd.readouterr().err == ""
    assert "`v9`" in refusal(NAME, "v9")


def test_caches_of_other_programs(hub, monkeypatch, capfd):
    """Offline, a copy by another program is taken with a note; one without weights is refused."""
    snapshot_download(NAME, allow_patterns=["*.json"])
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "no whole copy" in refusal()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    snapshot_download(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    capfd.readouterr()

    resolve_checkpoint(NAME)

    assert "was cached by another program" in capfd.readouterr().err


def test_no_network(hub, monkeypatch, capfd):
    """Without a network, a whole copy in the cache is taken with a note; without one, a line names the server."""
    resolve_checkpoint(NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    capfd.readouterr()

    path = resolve_checkpoint(NAME)

    assert f"its copy in the cache is taken, commit {path.name[:12]}" in capfd.readouterr().err
    line = refusal("org/absent")
    assert line == "`org/absent` is no directory here, and http://127.0.0.1:9 cannot be reached (Connection refused)"
    monkeypatch.setattr(constants, "ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert refusal("org/absent").endswith("http://hub.invalid cannot be reached (proxy: Connection refused)")
    monkeypatch.setattr(constants, "ENDPOINT", "huggingface.co")
    assert refusal("org/absent").startswith("cannot download `org/absent` from huggingface.co: ")


def test_other_servers(hub):
    """A server that is not the hub, such as the page of a network that wants a login, is one line; so is its error."""
    for body in (b"<html>Please log in", b"{}", b"[]", b"null"):
        hub.status, hub.body = 200, body
        assert refusal() == f"`{hub.url}` does not answer as the Hugging Face hub; check HF_ENDPOINT"

    hub.status, hub.body = 500, b""
    assert refusal().startswith(f"{hub.url} answers 500 for `{NAME}`")


def test_removed_weights_are_downloaded_again(hub):
    """A commit whose weights were removed from the cache is not taken as whole."""
    path = resolve_checkpoint(NAME)
    (path / "model.safetensors").resolve().unlink()

    assert resolve_checkpoint(NAME, path.name) == path
    load_model(path, "embedding")


def test_processes_take_the_commit_of_the_main_one(hub):
    """The other processes of a run resolve the commit that the main process downloaded, and local paths as they are."""
    main = World(0, 1, CPU)
    found = resolve_on_all(Path(NAME), main)
    hub.repositories[NAME].files["config.json"] += b"\n"

    class Peer(World):
        def on_main(self, work):
            return found

    hub.requests.clear()
    assert resolve_on_all(Path(NAME), Peer(1, 2, CPU)) == found
    assert hub.requests == []
    assert resolve_on_all(found, main) == found


def test_repositories_without_a_checkpoint(hub):
    """For repositories without weights or config, and for adapters, the error states what is missing."""
    files = hub.repositories[NAME].files
    hub.repositories["org/tf"] = Repository({name: files[name] for name in ("config.json", "tf_model.h5")})
    hub.repositories["org/data"] = Repository({"README.md": b"x"})
    hub.repositories["org/lora"] = Repository({"adapter_config.json": b"{}", "adapter_model.safetensors": b"x"})

    assert refusal("org/tf") == "`org/tf` of the hub has no weights as `model.safetensors` or `pytorch_model.bin`"
    assert "has no config.json" in refusal("org/data")
    assert "holds an adapter alone" in refusal("org/lora")
    assert hub.downloads() == []


def test_a_disk_that_fills_up(hub, tmp_path, monkeypatch):
    """A disk that fills up during the download is one line."""

    def write(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", write)

    assert refusal() == f"cannot download `{NAME}` from {hub.url}: [Errno 28] No space left on device"
    assert leftovers(tmp_path) == []


def test_needed_files():
    """Safetensors come before .bin, modules of sentence-transformers with their folders, weights last."""
    bert, bare = ["config.json", "vocab.txt"], ["config.json", "spiece.model"]
    assert needed_files([*bert, "model.safetensors", "pytorch_model.bin"]) == [*bert, "model.safetensors"]
    assert needed_files([*bert, "pytorch_model.bin"]) == [*bert, "pytorch_model.bin"]
    assert needed_files(bare) == bare
    assert needed_files([*bare, "tokenizer.json"]) == ["config.json", "tokenizer.json"]

    top = ["modules.json", "config_sentence_transformers.json", "config.json", "sentence_bert_config.json"]
    dense = ["2_Dense/config.json", "2_Dense/model.safetensors"]
    files = [*top, "1_Pooling/config.json", *dense, "model.safetensors", "x/config.json"]
    expected = [*top, "1_Pooling/config.json", dense[0], "model.safetensors", dense[1]]
    assert needed_files(files, ["", "1_Pooling", "2_Dense"]) == expected
    inner = [f"0_Transformer/{name}" for name in ("config.json", "sentence_bert_config.json", "pytorch_model.bin")]
    assert needed_files([*top[:1], *inner, "pytorch_model.bin"], ["0_Transformer"]) == [*top[:1], *inner]


def test_weights_in_parts(hub, tiny, tmp_path):
    """An index is downloaded with the parts that it names."""
    transformers.AutoModel.from_pretrained(tiny).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    hub.repositories["org/parts"] = Repository.of(tmp_path / "parts")
    hub.repositories["org/parts"].files["tokenizer.json"] = (tiny / "tokenizer.json").read_bytes()
    assert "model.safetensors.index.json" in hub.repositories["org/parts"].files

    load_model(resolve_checkpoint("org/parts"), "embedding")


def test_fine_tuning_by_name(hub, tmp_path, monkeypatch, capfd):
    """`--checkpoint org/name` fine-tunes; recipe, task card and model card have the name and the commit."""
    train = write_classification(tmp_path / "train.jsonl", 16, 0)
    flags = "--num-epochs 1 --global-batch-size 8 --micro-batch-size 8 --max-seq-length 16 --dtype fp32"
    arguments = ["classification", "--checkpoint", NAME, "--train", str(train), "--run-dir", "run", *flags.split()]

    ended = call(finetune, arguments, monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    commit = hub.repositories[NAME].commit
    assert json.loads(Path("run/recipe.json").read_text())["checkpoint"] == f"{NAME}@{commit}"
    card = read_task_card("run/checkpoint")
    assert card.provenance["checkpoint"].items() >= {"name": NAME, "revision": commit}.items()
    assert f"base_model: {NAME}" in Path("run/checkpoint/README.md").read_text().replace('"', "")
    again = call(finetune, [*arguments, "--checkpoint", f"{NAME}@{commit}"], monkeypatch, capfd)
    assert again.returncode == 0, again.stderr


def test_evaluating_by_name(hub, checkpoint, text_file, monkeypatch, capfd):
    """`training.evaluate org/name` scores a checkpoint of ours from the hub; the table has the name and the commit."""
    hub.repositories["org/ours"] = Repository.of(checkpoint)

    ended = call(evaluate, ["org/ours", "--data", str(text_file)], monkeypatch, capfd)

    assert ended.returncode == 0, ended.stderr
    assert f"org/ours@{hub.repositories['org/ours'].commit}" in ended.stdout


def test_serving_by_name():
    """`make serve HUB=org/name` exports once, then serves; without HUB it serves MODELS."""
    root = Path(__file__).parents[3]

    def commands(*arguments):
        command = ["make", "--no-print-directory", "-n", "serve", "READY=", "PY=python", *arguments]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        ran = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
        return ran.stdout.split("\n")[:-1]

    model = "build/hub/org/name@v1/int8/name/1"
    assert commands("HUB=org/name@v1", "PRECISION=int8", "EXPORT_ARGS=--no-tune") == [
        f"test -f {model}/manifest.json || python -m export org/name@v1 {model} --precision int8 --no-tune",
        "python -m serving build/hub/org/name@v1/int8 --port 50051 --metrics-port 9090 --http-port 8080 ",
    ]
    assert commands() == ["python -m serving models --port 50051 --metrics-port 9090 --http-port 8080 "]
    assert commands("HTTP_PORT=") == ["python -m serving models --port 50051 --metrics-port 9090  "]


def test_export_by_name(hub, monkeypatch, capfd):
    """`python -m export org/name` writes a manifest that names the commit."""
    arguments = [NAME, "models/tiny/1", "--task", "embedding", "--no-tune", "--revision", "main"]

    assert call(export, arguments, monkeypatch, capfd).returncode == 0
    found = json.loads(Path("models/tiny/1/manifest.json").read_text())["provenance"]["checkpoint"]
    assert (found["name"], found["revision"]) == (NAME, hub.repositories[NAME].commit)
    assert found["sha256"] == hashlib.sha256(hub.repositories[NAME].files["model.safetensors"]).hexdigest()
