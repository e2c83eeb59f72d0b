"""A broken model is `failed` with a one-line error, and other models are served."""

import json
import os
from collections import Counter

import numpy as np
import onnx
import pytest

from serving.core.models import load_model
from tasks.bundle.files import sha256
from tasks.bundle.manifest import MANIFEST_FILE, Execution
from tasks.bundle.model_directory import DATA_FILE, MODEL_FILE
from tasks.bundle.providers import OPENVINO
from tasks.text.tokenizer_files import TOKENIZER_FILE
from tests.serving.conftest import serve
from tests.serving.core.test_repository import embed, states, versions
from tests.serving.models import edit_manifest, make_endless, write_model
from tests.serving.reliability import vectors, wait_until


def sign(directory):
    """Update the digests in the manifest of a changed model."""
    names = [name for name in (MODEL_FILE, DATA_FILE, TOKENIZER_FILE) if (directory / name).is_file()]
    edit_manifest(directory, files={name: sha256(directory / name) for name in names})


def edit_tokenizer(directory, **changes):
    path = directory / TOKENIZER_FILE
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), encoding="utf-8")
    sign(directory)


def charsmap(value):
    return {"normalizer": {"type": "Precompiled", "precompiled_charsmap": value}}


def nest(directory):
    normalizer = '{"type":"Sequence","normalizers":[' * 50_000 + "]}" * 50_000
    path = directory / TOKENIZER_FILE
    path.write_text(path.read_text("utf-8").replace('"normalizer":', f'"normalizer":{normalizer},"x":', 1), "utf-8")
    sign(directory)


def lengthen_vocabulary(directory):
    edit_tokenizer(
        directory,
        added_tokens=[
            *json.loads((directory / TOKENIZER_FILE).read_text("utf-8"))["added_tokens"],
            {"id": 28, "content": "more", "special": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False),
        ],
    )


BROKEN = {
    "a tokenizer that panics when it is read": (
        lambda directory: edit_tokenizer(directory, **charsmap("/////w==")),
        "not a tokenizer file: `",
    ),
    "a tokenizer that panics when it is used": (
        lambda directory: edit_tokenizer(directory, **charsmap("AAAAAA==")),
        "is broken: the tokenizer cannot read a text",
    ),
    "a tokenizer nested deeply": (nest, "not a tokenizer file: `"),
    "a tokenizer with more tokens than the graph": (lengthen_vocabulary, "has token ids up to 28, but the manifest"),
    "a tokenizer with a pattern that takes too long": (
        lambda directory: edit_tokenizer(
            directory,
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False},
        ),
        "has the pattern `(a+)+$`, which takes too long on texts like 'aaaa",
    ),
    "a manifest nested deeply": (
        lambda directory: (directory / MANIFEST_FILE).write_text('{"a":' * 100_000),
        "broken manifest `",
    ),
    "an endless manifest": (
        lambda directory: (directory / MANIFEST_FILE).write_text(" " * (16 * 2**20 + 1)),
        "is too large: more than 16777216 bytes",
    ),
    "a graph that is none": (
        lambda directory: (directory / MODEL_FILE).write_bytes(b"junk") and sign(directory),
        "cannot load `",
    ),
}


def test_broken_models_affect_no_other(tmp_path):
    """Broken models affect no other one, at start or later, and are served once they are corrected."""
    write_model(tmp_path)
    broken = {f"broken{number}": case for number, case in enumerate(BROKEN.values())}
    for name, (damage, _) in broken.items():
        write_model(tmp_path, name)
        damage(tmp_path / name / "1")
    with serve(tmp_path, poll_s=0.02) as server:
        for name, (_, message) in broken.items():
            state, error = versions(server)[f"{name}/1"]
            assert state == "FAILED"
            assert message in error
            assert "\n" not in error
        assert states(server)["tiny/1"] == "READY"

        for name, (damage, _) in broken.items():
            write_model(tmp_path, name, "2")
            damage(tmp_path / name / "2")
        wait_until(lambda: all(states(server).get(f"{name}/2") == "FAILED" for name in broken), "some are not reported")
        for name in broken:
            write_model(tmp_path, name, "3")
        wait_until(lambda: all(states(server).get(f"{name}/3") == "READY" for name in broken), "the watcher has ended")
        assert embed(server, name="tiny").dim == 8


def test_a_graph_that_never_ends(tmp_path):
    """More graphs that never end than loads at a time are `failed`, each in one line, and others are served."""
    write_model(tmp_path)
    for name in ("endless", "forever", "a", "z"):
        write_model(tmp_path, name)
        make_endless(tmp_path / name / "1")
    with serve(tmp_path, max_run_s=0.2) as server:
        path = tmp_path / "endless" / "1" / MODEL_FILE

        assert Counter(states(server).values()) == {"FAILED": 4, "READY": 1}
        assert versions(server)["endless/1"][1] == (
            f"`{path}` takes more than 0.2 s on 32 tokens; export a faster model, or raise --max-run-s"
        )
        assert embed(server, name="tiny").dim == 8


def test_a_loop_in_openvino_is_refused(tmp_path):
    """A graph with a loop is refused for OpenVINO, whose loops cannot be aborted, before it runs one."""
    write_model(tmp_path, execution=Execution(provider=OPENVINO, max_batch_tokens=64))
    make_endless(tmp_path / "tiny" / "1")

    with pytest.raises(ValueError, match=r"cannot load `.*`: it has a loop, which OpenVINO cannot abort"):
        load_model(tmp_path / "tiny" / "1")


def move_weights(directory, *, signed=True, location=DATA_FILE):
    """Move the weights to a file next to the graph, as export does for large graphs."""
    proto = onnx.load(directory / MODEL_FILE)
    place = directory / location
    if place.exists():
        place.unlink()
    onnx.save(proto, directory / MODEL_FILE, save_as_external_data=True, location=location, size_threshold=64)
    files = (MODEL_FILE, TOKENIZER_FILE, *([location] if signed else []))
    edit_manifest(directory, files={name: sha256(directory / name) for name in files})


def overwrite(path):
    """Overwrite a file in place, keeping its size and modification time."""
    status, size = path.stat(), path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_weights_beside_the_graph(tmp_path):
    """External weights are loaded once: a later write to their file only makes the version stale."""
    reference = write_model(tmp_path, "tiny", hidden_size=64)
    move_weights(tmp_path / "tiny" / "1")
    expected = np.stack(reference.predict(["cat"]))
    data = tmp_path / "tiny" / "1" / DATA_FILE
    with serve(tmp_path, poll_s=0.02) as server:
        np.testing.assert_allclose(vectors(embed(server, ["cat"])), expected, rtol=1e-4, atol=1e-5)
        overwrite(data)
        np.testing.assert_allclose(vectors(embed(server, ["cat"])), expected, rtol=1e-4, atol=1e-5)
        wait_until(lambda: states(server)["tiny/1"] == "STALE", "the change was not noticed")
        os.truncate(data, 0)
        np.testing.assert_allclose(vectors(embed(server, ["cat"])), expected, rtol=1e-4, atol=1e-5)

        wait_until(lambda: f"wrong digest of `{data}`" in versions(server)["tiny/1"][1], "no error was reported")


@pytest.mark.parametrize("location", [DATA_FILE, "weights.bin"])
def test_weights_without_a_digest(tmp_path, location):
    """A model with external weights that the manifest does not list is not served."""
    write_model(tmp_path)
    write_model(tmp_path, "other")
    move_weights(tmp_path / "other" / "1", signed=False, location=location)
    with serve(tmp_path) as server:
        assert states(server) == {"other/1": "FAILED", "tiny/1": "READY"}
        assert versions(server)["other/1"][1] == (
            f"`{tmp_path / 'other' / '1' / MODEL_FILE}` does not match its manifest: it reads weights from "
            f"`{location}`, which `files` lacks; export the model again"
        )


class PanicException(BaseException):
    """Stand-in for the exception of a Rust panic, which no module exports."""


def test_unexpected_errors(tmp_path, monkeypatch, caplog):
    """Any error while a model is loaded fails that model only, also without a message or from BaseException."""
    write_model(tmp_path)
    errors = {
        "memory": MemoryError(),
        "panic": PanicException("a panic"),
        "recursion": RecursionError(),
        "exit": SystemExit(3),
    }

    def failing(path, *, loaded, **options):
        if error := errors.get(path.parent.name):
            raise error
        return load_model(path, loaded=loaded, **options)

    monkeypatch.setattr("serving.server.load_model", failing)
    for name in errors:
        write_model(tmp_path, name)
    with serve(tmp_path) as server:
        found = versions(server)

    assert found.pop("tiny/1")[0] == "READY"
    assert all(state == "FAILED" and error.startswith("unexpected ") for state, error in found.values())
    assert all(f"loading {name}/1 failed" in caplog.text for name in errors)
