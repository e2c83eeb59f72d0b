"""Servers of several processes: shares, traffic while processes are killed, and what replaces those that fail."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from bertline import Client, Unauthenticated
from serving import settings as settings_module
from serving.settings import Settings, read_settings
from serving.supervisor import share_of
from tests.serving.models import write_model
from tests.serving.processes import command, listening
from tests.serving.reliability import wait_until

FAKE = """
import os, signal, sys, time
from serving import supervisor
from serving.process import logs
from serving.settings import Settings

supervisor.SILENT_S, supervisor.FIRST_DELAY_S, supervisor.MAX_DELAY_S = 0.5, 0.05, 0.2
logs.configure("text", "info")

def serve(settings, member):
    {body}

print(supervisor.Supervisor(Settings(port=0, metrics_port=0, processes=2), serve).run())
"""
"""Supervisor of processes that do something else than serve."""


SICK = """
import os, sys
from pathlib import Path
from serving.__main__ import main
from serving.core.models import Model

def probe(self, *_, probe=Model.probe):
    return "wrong numbers" if str(os.getpid()) in Path(os.environ["SICK"]).read_text() else probe(self, *_)

Model.probe = probe
sys.exit(main())
"""
"""Server whose canaries fail in the processes that a file names."""


def children(pid):
    """Return the processes of a supervisor."""
    return [int(item) for item in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def page_of(url):
    with urllib.request.urlopen(url, timeout=10) as page:
        return page.read().decode()


def series(url, name):
    """Return the values of a metric by process, added up over its other labels."""
    found = re.findall(rf'^{name}(?:{{.*?process="(\d+)".*}})? (\S+)$', page_of(url), re.MULTILINE)
    totals = Counter()
    for process, value in found:
        totals[process] += float(value)
    return totals


def wait_for(url, count):
    """Wait until so many processes take calls."""
    wait_until(lambda: len(series(url, "process_start_time_seconds")) == count, "not all processes take calls")


@contextmanager
def traffic(target, **options):
    """Call a server from 8 threads; yield the replies and the errors."""
    replies, errors, stopped = [], [], threading.Event()
    with Client(target, **options) as client:

        def call():
            while not stopped.is_set():
                try:
                    replies.append(client.embed(["cat", "a dog"]).shape)
                except Exception as error:
                    errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        try:
            yield replies, errors
        finally:
            stopped.set()
            for thread in threads:
                thread.join(30)


def wait_for_more(replies, count=50):
    wanted = len(replies) + count
    wait_until(lambda: len(replies) > wanted, "no more replies come")


@pytest.mark.parametrize(
    ("cores", "has_gpu", "count"),
    [(1, False, 1), (7, False, 1), (64, False, 8), (1, True, 1), (8, True, 4)],
)
def test_automatic_number_of_processes(cores, has_gpu, count, tmp_path, monkeypatch):
    """`auto` depends on the cores and on a GPU; words that are no number are refused."""
    monkeypatch.setattr(settings_module, "available_cpus", lambda: cores)
    monkeypatch.setattr(settings_module, "_GPU", tmp_path if has_gpu else tmp_path / "none")

    assert read_settings([str(tmp_path), "--processes", "auto"]).processes == count
    with pytest.raises(ValueError, match=r"--processes.*some"):
        read_settings([str(tmp_path), "--processes", "some"])


def test_calls_survive_killed_processes(embedder):
    """No call of a retrying client fails while each process is killed in turn; all are replaced."""
    with listening(embedder, "--processes", 3) as (process, target, metrics):
        wait_for(metrics, 3)
        with traffic(target) as (replies, errors):
            wait_for_more(replies)
            for pid in children(process.pid):
                os.kill(pid, signal.SIGKILL)
                wait_for_more(replies)
                wait_until(lambda killed=pid: len(set(children(process.pid)) - {killed}) == 3, "it is not replaced")
            wait_for_more(replies)

        assert not errors
        wait_for(metrics, 3)
        assert series(metrics, "bertline_process_replaced_total") == {"0": 1, "1": 1, "2": 1}
        assert "\nbertline_processes 3.0\n" in page_of(metrics)


@pytest.mark.slow
def test_a_job_writes_each_row_once_while_processes_are_killed(embedder, tmp_path):
    """A job of the command line loses no row, and writes none twice, while processes are killed."""
    texts, rows = tmp_path / "texts.jsonl", tmp_path / "rows.jsonl"
    count = 40_000
    texts.write_text("".join(f'{{"id": {number}, "text": "a cat sees {number}"}}\n' for number in range(count)))
    with listening(embedder, "--processes", 2) as (process, target, metrics):
        wait_for(metrics, 2)
        words = ["-m", "bertline", "embed", "-i", texts, "-o", rows, "--target", target]
        with subprocess.Popen([sys.executable, *map(str, words)], stderr=subprocess.PIPE, text=True) as job:
            num_killed = 0
            while job.poll() is None:
                time.sleep(1)
                if len(found := children(process.pid)) == 2:
                    os.kill(found[0], signal.SIGKILL)
                    num_killed += 1
            message = job.stderr.read()

    assert job.returncode == 0, message
    assert num_killed >= 2, message
    assert [json.loads(line)["id"] for line in rows.read_text().splitlines()] == list(range(count))


def test_a_process_whose_canary_fails_is_replaced(embedder, tmp_path):
    """A process that computes wrong numbers drains and is replaced; no call fails."""
    sick = tmp_path / "sick"
    sick.touch()

    def start(*arguments):
        return [sys.executable, "-c", SICK, *map(str, arguments)]

    flags = ("--processes", 2, "--canary-s", 0.1)
    with listening(embedder, *flags, start=start, SICK=str(sick)) as (process, target, metrics):
        wait_for(metrics, 2)
        with traffic(target) as (replies, errors):
            ill = children(process.pid)[1]
            sick.write_text(str(ill))
            wait_until(lambda: ill not in children(process.pid), "it is not replaced")
            wait_for(metrics, 2)
            wait_for_more(replies)
        process.terminate()
        _, log = process.communicate(timeout=30)

    assert not errors
    assert re.search("CRITICAL .*fails its canary: wrong numbers; another process takes the place", log)
    assert "(exit code 1); another one starts" in log


def test_a_client_spreads_its_calls(embedder):
    """One client connects to each process, and its calls are spread over them."""
    with listening(embedder, "--processes", 3) as (_, target, metrics):
        wait_for(metrics, 3)
        with traffic(target) as (replies, errors):
            wait_until(lambda: len(series(metrics, "bertline_batch_rows_count")) == 3)
            wait_for_more(replies, 500)
            before = series(metrics, "grpc_server_handled_total")
            wait_for_more(replies, 1500)
            counts = series(metrics, "grpc_server_handled_total") - before

        assert not errors
        assert max(counts.values()) < 3 * min(counts.values())  # three on two cores are not equally fast


def test_a_drain_ends_all_processes(embedder):
    """SIGTERM drains all processes, also if it comes twice to each; nothing is left, and the exit code is 0."""
    with listening(embedder, "--processes", 2) as (process, target, metrics):
        wait_for(metrics, 2)
        pids = children(process.pid)
        with Client(target) as client:
            assert client.embed(["cat"]).shape[0] == 1
        for pid in (*pids, process.pid):  # as systemd does
            os.kill(pid, signal.SIGTERM)
        _, log = process.communicate(timeout=30)

    assert process.returncode == 0
    assert log.count("draining for at most 10 s") == 1
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_no_process_outlives_its_supervisor(embedder):
    """If the supervisor is killed, its processes end."""
    with listening(embedder, "--processes", 2) as (process, _, metrics):
        wait_for(metrics, 2)
        pids = children(process.pid)
        process.kill()
        wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids), "a process is left")


def test_models_change_in_all_processes(embedder, tmp_path):
    """After SIGHUP, every process serves a new model."""
    models = tmp_path / "models"
    shutil.copytree(embedder, models)
    with listening(models, "--processes", 2, "--poll-s", 0) as (process, _, metrics):
        wait_for(metrics, 2)
        write_model(models, "second", task="embedding")
        os.kill(process.pid, signal.SIGHUP)
        loaded = re.compile(r'bertline_model_state\{model="second",process="(\d)",state="ready",version="1"\} 1.0')
        wait_until(lambda: len(loaded.findall(page_of(metrics))) == 2, "a process lacks the model")


def test_certificates_are_renewed_in_all_processes(embedder, authority, stranger, tmp_path):
    """Each process takes renewed certificates, although any of them may answer on the port."""
    files = [tmp_path / "cert.pem", tmp_path / "key.pem"]

    def install(certificate):
        for new, path in zip((certificate.path, certificate.key), files, strict=True):
            path.write_bytes(new.read_bytes())

    install(authority.sign("first"))
    flags = ("--tls-cert", files[0], "--tls-key", files[1])
    with listening(embedder, "--processes", 2, *flags) as (_, target, metrics):
        wait_for(metrics, 2)
        install(stranger.sign("second"))

        def uses_new():
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(target, stranger.trusted(), options=options) as channel:
                try:
                    grpc.channel_ready_future(channel).result(timeout=2)
                except grpc.FutureTimeoutError:
                    return False
            return True

        wait_until(uses_new, "the old certificates are in use", limit_s=20)
        wait_until(lambda: all(uses_new() for _ in range(12)), "a process uses the old certificates")


def test_metrics_and_tokens_of_the_http_port(embedder, tmp_path):
    """The HTTP port has the metrics of all processes, too, for those with a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text("secret\n")
    ready, write = os.pipe()
    flags = ("--port", 0, "--metrics-port", 0, "--http-port", 0, "--tokens-file", tokens, "--ready-fd", write)
    with subprocess.Popen(
        command(embedder, "--processes", 2, *flags), pass_fds=[write], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        os.close(write)
        with open(ready) as line:
            address = json.loads(line.readline())
            assert line.read() == ""  # no process keeps it open
        try:
            wait_for(address["metrics_url"], 2)
            request = urllib.request.Request(
                f"{address['http_url']}/metrics", headers={"authorization": "Bearer secret"}
            )
            page = page_of(request)
            with Client(address["target"]) as client, pytest.raises(Unauthenticated):
                client.embed(["cat"])
        finally:
            process.kill()

    assert re.findall(r'process_start_time_seconds\{process="(\d)"\}', page) == ["0", "1"]


@pytest.mark.parametrize("flags", [["none"], ["--port"], ["--metrics-port"], ["--http-port"]])
def test_mistakes_exit_with_2(embedder, tmp_path, flags):
    """A mistake is one line, as with a single process, and nothing is started again."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        ports = {"--port": 0, "--metrics-port": 0} | ({flags[0]: busy.getsockname()[1]} if flags != ["none"] else {})
        models = tmp_path / "none" if flags == ["none"] else embedder
        arguments = [item for pair in ports.items() for item in pair]
        done = subprocess.run(
            command(models, "--processes", 2, *arguments), capture_output=True, text=True, timeout=60, check=False
        )

    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: .*(no directory of models|address already in use).*\n", done.stderr)


def supervise(body, pattern):
    """Run a supervisor of processes with another body until it logs a pattern; return its output and log."""
    process = subprocess.Popen(
        [sys.executable, "-c", FAKE.format(body=body)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = ""
    for line in process.stderr:
        log += line
        if re.search(pattern, line):
            break
    process.terminate()
    out, rest = process.communicate(timeout=20)
    return out, log + rest


def test_a_process_that_hangs_is_killed_and_replaced():
    """A process whose event loop is silent is killed; the others go on."""
    body = "member.board.set_ready(member.number); signal.signal(15, lambda *_: os._exit(0)); number = member.number\n"
    body += "    while True: number == 0 and member.board.beat(0); time.sleep(0.05)"

    out, log = supervise(body, r"process 1 ended after .* \(signal SIGKILL\); another one starts")

    assert "process 1 hangs" in log
    assert "process 0" not in log
    assert out == "0\n"


def test_the_delay_grows_with_each_failure():
    """A process that fails at once again and again is started less and less often."""
    body = "member.board.set_ready(member.number); signal.signal(15, lambda *_: os._exit(0))\n"
    body += "    while not member.number: member.board.beat(0); time.sleep(0.05)\n    return 3"

    _, log = supervise(body, r"starts in 0.2 s")

    assert re.findall(r"process 1 ended after 0 s \(exit code 3\); another one starts in (\S+) s", log) == [
        "0.05",
        "0.1",
        "0.2",
    ]


def test_the_first_process_decides_at_the_start():
    """If the first process ends before it takes calls, the supervisor ends with its exit code."""
    assert supervise("return 7", "never")[0] == "7\n"
    assert supervise("os.kill(os.getpid(), 9)", "never")[0] == "1\n"


def test_shares():
    """Processes share cores, memory, cache and connections; none gets less than it needs."""
    settings = Settings(
        processes=3, workers=8, max_connections=10, cache_bytes=300, max_concurrent_per_client=4, buffer_bytes=2**27
    )

    shares = [share_of(settings, number) for number in range(3)]

    assert [share.workers for share in shares] == [3, 3, 2]
    assert [share.max_connections for share in shares] == [4, 4, 4]
    assert [share.cache_bytes for share in shares] == [100, 100, 100]
    assert [share.max_concurrent_per_client for share in shares] == [2, 2, 2]
    assert all(share.buffer_bytes == 2**27 // 3 for share in shares)
    few = share_of(Settings(processes=8, workers=2, buffer_bytes=2**24), 7)
    assert (few.workers, few.buffer_bytes) == (1, 4 * few.max_request_bytes)
