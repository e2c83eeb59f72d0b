"""Storage that hangs or holds special files affects only its own models."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from serving.core.repository import Repository
from serving.core.storage import StorageThreads, fingerprint, scan_directory
from tasks.bundle.files import sha256
from tasks.bundle.manifest import MANIFEST_FILE
from tasks.bundle.model_directory import DATA_FILE, MODEL_FILE
from tasks.text.tokenizer_files import TOKENIZER_FILE
from tests.serving.conftest import serve
from tests.serving.core.test_repository import embed, states, versions, watching
from tests.serving.models import edit_manifest, write_model
from tests.serving.reliability import errors_of, wait_until


class Storage:
    """Storage whose path `hung` does not answer, like a mount without its server."""

    def __init__(self, monkeypatch):
        self.hung = None
        self.waiting = 0
        self._answers = threading.Event()
        for name in ("listdir", "scandir", "open"):
            monkeypatch.setattr(os, name, self._slow(getattr(os, name)))

    def _slow(self, function):
        def slow(path=".", *rest, **options):
            if str(path) == str(self.hung):
                self.waiting += 1
                assert self._answers.wait(60)
            return function(path, *rest, **options)

        return slow

    def answer(self):
        self.hung = None
        self._answers.set()


@pytest.fixture
def storage(monkeypatch):
    monkeypatch.setattr("serving.core.storage.IDLE_S", 0.5)
    storage = Storage(monkeypatch)
    yield storage
    storage.answer()


AGE = "bertline_repository_look_age_seconds"


@pytest.mark.parametrize("place", ["other", "tiny/2", ""])
def test_hanging_folder_does_not_stop_scans(tmp_path, storage, caplog, place):
    """While a folder hangs, all other models are served and loaded, the log reports it once, and threads do not pile
    up."""
    write_model(tmp_path)
    with watching(tmp_path) as server:
        assert server.total(AGE) < 1
        write_model(tmp_path / "staging", "other")
        write_model(tmp_path / "staging", "tiny", "2")
        storage.hung = tmp_path / place
        for name in ("other", "tiny"):
            shutil.copytree(tmp_path / "staging" / name, tmp_path / name, dirs_exist_ok=True)
        write_model(tmp_path, "third")
        loaded = {"": set(), "tiny/2": {"other/1", "third/1"}, "other": {"tiny/2", "third/1"}}
        expected = loaded[place] | {"tiny/1"}
        wait_until(lambda: {key for key, state in states(server).items() if state == "READY"} == expected, place)
        server.wait_for(AGE, 1)
        wait_until(lambda: errors_of(caplog), "no log line")

        assert embed(server, name="tiny", version="1").dim == 8
        assert [f"`{tmp_path / place}` does not answer" in line for line in errors_of(caplog)] == [True]
        assert storage.waiting == 1

        storage.answer()
        every = {"tiny/1": "READY", "tiny/2": "READY", "other/1": "READY", "third/1": "READY"}
        wait_until(lambda: states(server) == every, "it was not found again")
        wait_until(lambda: server.total(AGE) < 0.5, "scans do not end")


def test_one_thread_reads_all_folders(tmp_path, monkeypatch):
    """A scan starts as many threads for five models as for one; with two that hang, the others are read as well."""
    monkeypatch.setattr("serving.core.storage.IDLE_S", 0.2)
    monkeypatch.setattr("serving.core.storage.NUM_READERS", 1)
    for name in "abcde":
        (tmp_path / name / "1").mkdir(parents=True)
    started, threads, release = [], StorageThreads(), threading.Event()
    start = StorageThreads.start
    monkeypatch.setattr(StorageThreads, "start", lambda *rest: started.append(rest[1]) or start(*rest))

    def read(path):
        assert path.parent.name not in "bd" or release.wait(60)
        return fingerprint(path)

    async def run():
        whole = await scan_directory(tmp_path, threads)
        num_started = len(started)
        monkeypatch.setattr("serving.core.storage.fingerprint", read)
        parts = [await scan_directory(tmp_path, threads) for _ in range(2)]
        num_running = len(threads._running)
        release.set()
        return whole, num_started, parts, num_running

    whole, num_started, parts, num_running = asyncio.run(run())

    assert (whole.unreadable, len(whole.models), num_started, num_running) == ({}, 5, 3, 2)
    assert [found.unreadable.keys() for found in parts] == [{tmp_path / "b" / "1", tmp_path / "d" / "1"}] * 2


def test_a_load_that_hangs(tmp_path, storage, caplog):
    """A load that hangs delays neither other loads nor the version that it replaces."""
    write_model(tmp_path)
    with watching(tmp_path) as server:
        write_model(tmp_path / "staging", "tiny", "2")
        storage.hung = tmp_path / "tiny" / "2" / MODEL_FILE
        os.rename(tmp_path / "staging" / "tiny" / "2", tmp_path / "tiny" / "2")
        shutil.rmtree(tmp_path / "tiny" / "1")
        wait_until(lambda: "has not ended after" in caplog.text, "no log line")
        write_model(tmp_path, "other")
        wait_until(lambda: states(server).get("other/1") == "READY", "other models wait for it")

        assert states(server) == {"tiny/1": "READY", "tiny/2": "LOADING", "other/1": "READY"}
        assert embed(server, name="tiny").model.version == "1"
        assert storage.waiting == 1

        storage.answer()
        wait_until(lambda: states(server) == {"tiny/2": "READY", "other/1": "READY"}, "it is not served")
    assert caplog.text.count("has not ended after") == 1


def test_error_of_a_slow_load_is_reported(tmp_path, storage, caplog):
    """The error of a load that hung before is reported like any other."""
    write_model(tmp_path)
    with watching(tmp_path, poll_s=0) as server:
        write_model(tmp_path, "tiny", "2")
        storage.hung = tmp_path / "tiny" / "2" / MODEL_FILE
        server.loop.call_soon_threadsafe(server.server.reload)
        wait_until(lambda: "has not ended after" in caplog.text, "no log line")
        (tmp_path / "tiny" / "2" / MODEL_FILE).write_bytes(b"junk")
        storage.answer()
        wait_until(lambda: states(server)["tiny/2"] == "FAILED", "it was not reported")

        assert "wrong digest" in versions(server)["tiny/2"][1]
        assert any("cannot load tiny/2" in line for line in errors_of(caplog))
        assert server.total(AGE) == 0


@pytest.mark.parametrize("part", ["", MODEL_FILE])
def test_server_starts_while_storage_hangs(tmp_path, storage, part):
    """A server starts while storage hangs, and serves its models later."""
    write_model(tmp_path)
    write_model(tmp_path, "other")
    storage.hung = tmp_path / "other" / "1" / part
    with watching(tmp_path) as server:
        assert states(server) == {"tiny/1": "READY", "other/1": "LOADING" if part else "FAILED"}

        storage.answer()
        wait_until(lambda: states(server)["other/1"] == "READY", "it is not served")


def test_start_fails_if_the_only_storage_hangs(tmp_path, storage):
    """A server whose only storage hangs reports that, and waits for a slow load."""
    write_model(tmp_path)
    storage.hung = tmp_path / "tiny" / "1"
    with pytest.raises(TimeoutError, match=r"no model can be loaded: `.*/tiny/1` does not answer"), serve(tmp_path):
        pass
    storage.hung = tmp_path / "tiny" / "1" / MODEL_FILE
    threading.Timer(1, storage.answer).start()
    with serve(tmp_path, strict=True) as server:
        assert states(server) == {"tiny/1": "READY"}


def test_pipes_and_devices_are_refused(tmp_path):
    """A version with a pipe or a device is refused without waiting, others are served, and a pipe is no model."""
    write_model(tmp_path)
    os.mkfifo(tmp_path / "other")
    odd = {}
    for name in (MANIFEST_FILE, MODEL_FILE, DATA_FILE, TOKENIZER_FILE):
        for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
            model = f"odd{len(odd)}"
            write_model(tmp_path, model)
            place = odd[f"{model}/1"] = tmp_path / model / "1" / name
            if name == DATA_FILE:
                place.write_bytes(b"")
                files = {item: sha256(place.with_name(item)) for item in (MODEL_FILE, DATA_FILE, TOKENIZER_FILE)}
                edit_manifest(place.parent, files=files)
            place.unlink()
            make(place)
    with serve(tmp_path) as server:
        found = versions(server)

    assert found.pop("tiny/1")[0] == "READY"
    assert found.keys() == odd.keys()
    assert all(f"not a regular file: `{place}`" in found[name][1] for name, place in odd.items())


def test_the_watcher_survives(tmp_path, monkeypatch, caplog):
    """An unexpected error is logged, and the next scan finds the models."""
    write_model(tmp_path)
    refresh, failures = Repository.refresh, [MemoryError(), type("PanicException", (BaseException,), {})("broken")]

    async def failing(self, **options):
        if failures:
            raise failures.pop()
        await refresh(self, **options)

    with watching(tmp_path) as server:
        monkeypatch.setattr(Repository, "refresh", failing)
        write_model(tmp_path, "other")
        wait_until(lambda: states(server).get("other/1") == "READY", "it has ended")

    assert caplog.text.count("scanning the models failed") == 2


HANGING = """
import os, sys, time
from pathlib import Path
import serving.core.storage
from serving.__main__ import main
serving.core.storage.IDLE_S = float(os.environ.get("IDLE_S", 10))
def slow(function):
    def hanging(path=".", *rest, **options):
        if str(path).endswith(os.environ["HUNG"]):
            print("hanging", file=sys.stderr, flush=True)
            time.sleep(1000)
        return function(path, *rest, **options)
    return hanging
for name in ("listdir", "scandir", "open"):
    setattr(os, name, slow(getattr(os, name)))
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("hung", ["tiny/2/model.onnx", pytest.param("models", marks=pytest.mark.slow)])
def test_sigterm_ends_a_process_with_hanging_storage(tmp_path, hung):
    """SIGTERM ends a process with hanging storage within its grace period; SIGHUP does not kill it."""
    write_model(tmp_path / "models")
    command = [sys.executable, "-c", HANGING, tmp_path / "models", "--port", "0", "--metrics-port", "0"]
    command += ["--grace-s", "1", "--poll-s", "0"]
    starts = "tiny/2" in hung
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"HUNG": hung}
    ) as process:
        try:
            if starts:
                assert "serving 1 model" in process.stdout.readline()
                write_model(tmp_path / "models", version="2")
                process.send_signal(signal.SIGHUP)
            assert "hanging\n" in iter(process.stderr.readline, "")
            process.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            started_s = time.monotonic()
            process.send_signal(signal.SIGTERM)

            assert process.wait(20) == 0
            assert time.monotonic() - started_s < 3
            assert process.stderr.read().endswith("ended\n")
        finally:
            process.kill()


@pytest.mark.slow
def test_start_fails(tmp_path):
    """A server whose only model is on hanging storage exits with 1, so that it is restarted."""
    write_model(tmp_path / "models")
    command = [sys.executable, "-c", HANGING, tmp_path / "models", "--port", "0", "--metrics-port", "0"]
    environment = os.environ | {"HUNG": "models", "IDLE_S": "0.3"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment)

    assert done.returncode == 1
    assert "does not answer: its storage hangs\n" in done.stderr
    assert "Traceback" not in done.stderr
