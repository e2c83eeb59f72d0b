import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from tests.serving.models import write_model

READY = re.compile(r"serving (\d+) models? on (\S+), metrics on http://(\S+)/metrics\n")
LONG = "the cat " * 15


def command(*arguments):
    return [sys.executable, "-m", "serving", *map(str, arguments)]


def failure(*arguments, **environment):
    """Exit code and stderr of a server that cannot start."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=60, env=os.environ | environment, check=False
    )
    assert not done.stdout
    return done.returncode, done.stderr


@contextmanager
def started(*arguments, **environment):
    """A server process that is ready, its stub, and the address of its metrics."""
    process = subprocess.Popen(
        command(*arguments, "--port", 0, "--metrics-port", 0),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        ready = READY.fullmatch(process.stdout.readline())
        assert ready, process.stderr.read()
        with grpc.insecure_channel(ready[2]) as channel:
            yield process, encoder_pb2_grpc.EncoderStub(channel), f"http://{ready[3]}/metrics"
    finally:
        process.kill()
        process.communicate()


def wait_until_computing(metrics):
    """Until a batch has been computed."""
    end = time.monotonic() + 10
    while True:
        with urllib.request.urlopen(metrics, timeout=10) as reply:
            if re.search(r"^bertline_batch_rows_count\S* [1-9]", reply.read().decode(), re.MULTILINE):
                return
        assert time.monotonic() < end


def test_sigterm(slow_models):
    """SIGTERM lets the calls in flight finish; then the exit code is 0 and nothing was complained of."""
    with started(slow_models, "--max-batch-tokens", 32) as (process, stub, metrics):
        call = stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 8))
        wait_until_computing(metrics)
        process.send_signal(signal.SIGTERM)

        assert len(call.result(20).num_tokens) == 8
        assert process.wait(10) == 0
        assert not re.search("WARNING|ERROR|Traceback", process.stderr.read())


def test_second_signal(slow_models):
    """A second signal does not wait for the calls in flight."""
    with started(slow_models, "--max-batch-tokens", 32, "--workers", 1, BERTLINE_GRACE_S="60") as (
        process,
        stub,
        metrics,
    ):
        call = stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 400))
        wait_until_computing(metrics)
        process.send_signal(signal.SIGINT)
        with pytest.raises(grpc.RpcError):
            stub.ListModels(pb.ListModelsRequest())
        assert not call.done()
        process.send_signal(signal.SIGINT)

        assert process.wait(10) == 0
        assert call.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("flag", ["--port", "--metrics-port"])
def test_busy_port(all_tasks, flag):
    """A busy port is one line and exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        ports = {"--port": 0, "--metrics-port": 0, flag: busy.getsockname()[1]}
        code, stderr = failure(all_tasks[0], *(item for pair in ports.items() for item in pair))

    assert code == 2
    assert re.fullmatch(rf"error: .*cannot listen on `127.0.0.1:{ports[flag]}`: address already in use; .*\n", stderr)
    assert ("--metrics-port" in stderr) == (flag == "--metrics-port")


def test_broken_digest(tmp_path):
    """A changed file is one line that names it, and exit code 2."""
    write_model(tmp_path)
    path = tmp_path / "tiny" / "1" / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")

    code, stderr = failure(tmp_path, "--port", 0, "--metrics-port", 0)

    assert code == 2
    assert re.search(r"^error: no model can be loaded: wrong digest of `.*model.onnx`: .*\n\Z", stderr, re.MULTILINE)


def test_no_models(tmp_path):
    """A missing directory of models is one line and exit code 2."""
    code, stderr = failure(BERTLINE_MODELS_DIR=str(tmp_path / "none"), BERTLINE_PORT="0", BERTLINE_METRICS_PORT="0")

    assert code == 2
    assert re.fullmatch(r"error: no directory of models: `.*none`; .*\n", stderr)


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--port", "70000"], {}, r"--port \(BERTLINE_PORT\): .* 65535: `70000`"),
        ([], {"BERTLINE_WORKERS": "many"}, r"--workers \(BERTLINE_WORKERS\): .*: `many`"),
        (["--prot", "1"], {}, r"unrecognized arguments: --prot; see --help"),
    ],
)
def test_bad_settings(arguments, environment, message):
    """A setting that is wrong is one line that names it, and exit code 2."""
    code, stderr = failure(*arguments, **environment)

    assert code == 2
    assert re.fullmatch(rf"error: {message}.*\n", stderr)


def test_help():
    """Help names every flag and what it trades."""
    text = subprocess.run(command("--help"), capture_output=True, text=True, check=True, timeout=60).stdout

    for part in ("--host", "--port", "--metrics-port", "--workers", "--max-queue-s", "--grace-s", "BERTLINE_"):
        assert part in text


def test_sighup(tmp_path):
    """SIGHUP looks for models at once, without polling, and whatever it finds the server goes on."""
    write_model(tmp_path)
    with started(tmp_path, "--poll-s", 0) as (process, stub, _):
        write_model(tmp_path, version="2")
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 10
        while stub.Embed(pb.EmbedRequest(texts=["cat"])).model.version != "2":
            assert time.monotonic() < end
        (tmp_path / "tiny" / "3").mkdir()
        process.send_signal(signal.SIGHUP)
        while (infos := stub.ListModels(pb.ListModelsRequest()).models)[-1].model.version != "3" or not infos[-1].error:
            assert time.monotonic() < end

        assert [info.model.version for info in infos] == ["1", "2", "3"]
        assert "has no manifest.json" in infos[-1].error
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
