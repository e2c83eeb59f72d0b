import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from dataclasses import asdict

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.process.print_config import describe_settings, versions
from serving.process.ready import Ready, announce
from serving.settings import Settings, missing_package, read_settings, unknown_variables
from tests.serving.conftest import serve
from tests.serving.models import write_model
from tests.serving.processes import command, started
from tests.serving.reliability import wait_until

LONG = "the cat " * 15


def test_mistakes_exit_with_2(tmp_path):
    """A mistake in settings or models is one line on standard error, and exit code 2."""
    environment = os.environ | {"BERTLINE_PORT": "0", "BERTLINE_METRICS_PORT": "0"}
    done = subprocess.run(
        command(tmp_path / "none"), capture_output=True, text=True, timeout=60, env=environment, check=False
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: no directory of models: `.*none`; .*\n", done.stderr)


@pytest.mark.parametrize("flag", ["port", "metrics_port", "http_port"])
def test_busy_port(embedder, flag):
    """A busy port is an error that names its address, and its flag unless it is --port."""
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        with (
            pytest.raises(OSError, match=f"cannot listen on `127.0.0.1:{port}`: address already in use") as refused,
            serve(embedder, load=False, **{flag: port}),
        ):
            pass

    named = [name for name in ("metrics_port", "http_port") if f"--{name.replace('_', '-')}" in str(refused.value)]
    assert named == ([] if flag == "port" else [flag])


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--port", "70000"], {}, r"--port \(BERTLINE_PORT\): .* 65535: `70000`"),
        ([], {"BERTLINE_WORKERS": "many"}, r"--workers \(BERTLINE_WORKERS\): .*: `many`"),
        (["--tls-cert", "none.pem"], {}, r"--tls-cert \(BERTLINE_TLS_CERT\): .* not point to a file: `none.pem`"),
        (["--tls-cert", __file__], {}, r"--tls-cert .* and --tls-key .* must be set together"),
        ([], {"BERTLINE_TLS_CLIENT_CA": __file__}, r"--tls-client-ca .* needs --tls-cert and --tls-key"),
        (["--num-threads", "3", "--workers", "2"], {}, r"--num-threads .*: `3` is more than .* --workers, `2`"),
        (["--prot", "1"], {}, r"unrecognized arguments: --prot; see --help"),
        (["--ready-fd", "99"], {}, r"--ready-fd \(BERTLINE_READY_FD\): not open; .* must pass it on .*: `99`"),
    ],
)
def test_bad_settings(monkeypatch, arguments, environment, message):
    """A wrong setting is an error of one line that names it."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(ValueError, match=rf"^{message}[^\n]*$"):
        read_settings(arguments)


def test_directories_that_hold_no_models(tmp_path):
    """The folder of a model or version, and a checkpoint, are refused with what to do."""
    write_model(tmp_path / "models")
    for folder, message in (("tiny", "one model; serve its parent"), ("tiny/1", "one version of")):
        path = tmp_path / "models" / folder
        with pytest.raises(ValueError, match=rf"^`{path}` is {message}.*: `{tmp_path / 'models'}`$"), serve(path):
            pass
    (tmp_path / "config.json").write_text("{}")
    with (
        pytest.raises(ValueError, match="is a checkpoint, not a directory of models; export it first"),
        serve(tmp_path),
    ):
        pass


def wait_until_computing(metrics):
    """Wait until a batch has been computed."""

    def is_computing():
        with urllib.request.urlopen(metrics, timeout=10) as reply:
            return re.search(r"^bertline_batch_rows_count\S* [1-9]", reply.read().decode(), re.MULTILINE)

    wait_until(is_computing, "no batch is computed")


def is_draining(stub):
    """Return whether a server refuses new calls."""
    try:
        stub.ListModels(pb.ListModelsRequest())
    except grpc.RpcError:
        return True
    return False


def test_sigterm(slow_models):
    """SIGTERM lets running calls finish, and the exit code is 0 without warnings."""
    with started(slow_models, "--max-batch-tokens", 32) as (process, stub, metrics):
        call = stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 8))
        wait_until_computing(metrics)
        process.send_signal(signal.SIGTERM)

        assert len(call.result(20).num_tokens) == 8
        assert process.wait(60) == 0
        log = process.stderr.read()
        assert not re.search("WARNING|ERROR|Traceback", log)
        assert re.search(r"received SIGTERM: draining for at most 10 s\n(.*\n)*.* ended\n\Z", log)


def test_second_signal(slow_models):
    """A second signal does not wait for running calls."""
    flags = ("--max-batch-tokens", 32, "--workers", 1, "--max-queue-s", 1000)
    with started(slow_models, *flags, BERTLINE_GRACE_S="60") as (process, stub, metrics):
        call = stub.Embed.future(pb.EmbedRequest(texts=[LONG] * 400))
        wait_until_computing(metrics)
        process.send_signal(signal.SIGINT)
        wait_until(lambda: is_draining(stub), "new calls are accepted after a signal")
        assert not call.done()
        process.send_signal(signal.SIGINT)

        assert process.wait(60) == 0
        assert call.code() in {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_ready_line(capsys, log_format):
    """The ready line has the format of the log; the one at --ready-fd is always JSON, and ends with the file."""
    ready_fd, write_fd = os.pipe()
    ready = Ready("host:1", 1, "http://host:2/metrics", 2, "", False, ["tiny"])
    announce(ready, log_format, write_fd)
    with open(ready_fd) as file:
        at_fd = file.read()

    fields, text = json.loads(at_fd), "serving 1 model on host:1, metrics on http://host:2/metrics"

    assert at_fd.endswith("}\n")
    assert fields | asdict(ready) == fields
    assert (fields["event"], fields["logger"], fields["level"], fields["message"]) == ("ready", "serving", "info", text)
    assert capsys.readouterr().out == (at_fd if log_format == "json" else f"{text}\n")


def test_missing_reader_of_ready_fd_is_a_warning(caplog):
    """If the reader of --ready-fd is gone, the log has a warning."""
    ready_fd, write_fd = os.pipe()
    os.close(ready_fd)
    announce(Ready("host:1", 1, "", 2, "", False, ["tiny"]), "text", write_fd)

    wait_until(lambda: f"cannot write to --ready-fd `{write_fd}`: Broken pipe" in caplog.text)


def listed(stub):
    """Return the errors of the only model by version."""
    return {info.model.version: info.error for info in stub.ListModels(pb.ListModelsRequest()).models}


def test_a_server_in_its_surroundings(tmp_path, monkeypatch):
    """SIGHUP scans for models immediately, also broken ones; the socket of NOTIFY_SOCKET gets READY and STOPPING.

    The server needs no home directory and writes no files.
    """
    models, temporary, here, path = (tmp_path / name for name in ("models", "temporary", "here", "notify"))
    write_model(models)
    temporary.mkdir()
    here.mkdir(mode=0o555)
    environment = {"HOME": "/nonexistent", "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"}
    monkeypatch.setenv("PYTHONPATH", os.getcwd(), prepend=os.pathsep)
    monkeypatch.chdir(here)
    flags = ("--poll-s", 0, "--log-format", "json", "--log-calls", "all")
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        listener.bind(str(path))
        listener.settimeout(30)
        process, stub, _ = stack.enter_context(started(models, *flags, NOTIFY_SOCKET=str(path), **environment))
        assert listener.recv(100) == b"READY=1"
        write_model(models, version="2")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: stub.Embed(pb.EmbedRequest(texts=["cat"])).model.version == "2", "it is not loaded")
        (models / "tiny" / "3").mkdir()
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "has no manifest.json" in listed(stub).get("3", ""), "its error is not reported")

        assert listed(stub).keys() == {"1", "2", "3"}
        process.send_signal(signal.SIGTERM)
        assert listener.recv(100) == b"STOPPING=1"
        assert process.wait(60) == 0
        line = next(item for item in map(json.loads, process.stderr) if item.get("method"))
    assert (line["method"], line["code"], line["model"][:5]) == ("Embed", "OK", "tiny/")
    assert [*temporary.iterdir(), *here.iterdir()] == []


def test_every_flag_is_explained(capsys):
    """The help has every setting, and the prefix of the environment variables."""
    with pytest.raises(SystemExit, match="0"):
        read_settings(["--help"])
    text = capsys.readouterr().out
    for name, field in Settings.model_fields.items():
        assert field.description, name
        assert f"--{name.replace('_', '-')}" in text or name == "models_dir"
    assert "BERTLINE_" in text


def test_unknown_variables(monkeypatch):
    """Mistyped variables are reported, but not those of the client or of Kubernetes."""
    names = (
        "NUM_THREAD",
        "NUM_THREADS",
        "TARGET",
        "TOKEN",
        "SERVICE_HOST",
        "PORT_50051_TCP_ADDR",
        "METRICS_SERVICE_PORT",
    )
    for name in names:
        monkeypatch.setenv(f"BERTLINE_{name}", "3")

    assert unknown_variables() == ["BERTLINE_NUM_THREAD"]


def test_print_config(monkeypatch):
    """--print-config prints all settings with their sources; flags win over variables, and passwords are masked."""
    monkeypatch.setenv("BERTLINE_PORT", "7")
    monkeypatch.setenv("BERTLINE_MAX_TEXTS", "9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@collector:4317")
    found = json.loads(describe_settings(["models", "--port", "50051", "--open-health"]))

    assert found.keys() == Settings.model_fields.keys()
    assert found["port"] == {"value": 50051, "from": "flag"}
    assert found["open_health"] == {"value": True, "from": "flag"}
    assert found["max_texts"] == {"value": 9, "from": "BERTLINE_MAX_TEXTS"}
    assert found["grace_s"] == {"value": 10.0, "from": "default"}
    assert found["trace_endpoint"] == {
        "value": "http://***@collector:4317",
        "from": "OTEL_EXPORTER_OTLP_ENDPOINT",
    }


def test_versions():
    """--version prints the versions of Bertline and its main packages in one line."""
    assert re.fullmatch(r"bertline \d+\.\d+\.\d+ \(onnxruntime \S+, (openvino \S+, )?grpcio .*\)", versions())


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        (None, "python -m pip install --group http -c constraints.txt"),
        ("bertline-server-gpu", "python -m pip install 'dist/bertline_server_gpu-0.1-py3-none-any.whl[http]'"),
    ],
)
def test_the_command_fits_the_installation(monkeypatch, distribution, command):
    """The error has the command for a checkout, or for the installed wheel: its file, since PyPI may have its name."""
    installed = {"bertline_server": [distribution]} if distribution else {}
    monkeypatch.setattr("serving.settings.packages_distributions", lambda: installed)
    monkeypatch.setattr("serving.settings.version", lambda name: "0.1")

    assert str(missing_package("--a-flag", "a_package", "http")) == (
        f"--a-flag needs the package `a_package`: run `{command}`"
    )


HANGING = """
import sys, time
import serving.core.scheduler
serving.core.scheduler.ABORT_S = 0.2
from serving.core.session import Session
from serving.__main__ import main
run = Session.run
def hanging(self, arrays, *rest):
    if 10 in arrays["input_ids"] and arrays["input_ids"].shape[1] < 10:  # no canary
        print("hanging", file=sys.stderr, flush=True)
        time.sleep(1000)
    return run(self, arrays, *rest)
Session.run = hanging
sys.exit(main(sys.argv[1:]))
"""


READING = """
import sys, time
from serving.__main__ import main
from tasks.text.tokenizer import Tokenizer
tokenize = Tokenizer.tokenize
def reading(self, texts, **options):
    if len(texts[0]) > 1000:
        print("reading", file=sys.stderr, flush=True)
        time.sleep(1000)
    return tokenize(self, texts, **options)
Tokenizer.tokenize = reading
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def run_script(tmp_path, monkeypatch):
    """Function that makes servers of one model run a script instead of the module `serving`."""
    write_model(tmp_path)

    def use(script):
        monkeypatch.setattr(
            "tests.serving.processes.command", lambda *rest: [sys.executable, "-c", script, *map(str, rest)]
        )

    return use


def test_exit_while_a_request_is_decoded(tmp_path, run_script):
    """SIGTERM ends the process while requests are decoded, although their threads cannot be ended."""
    run_script(READING)
    with started(tmp_path, "--grace-s", 0.1) as (process, stub, _):
        calls = [stub.Embed.future(pb.EmbedRequest(texts=["cat " * 1000])) for _ in range(4)]
        assert "reading\n" in iter(process.stderr.readline, "")
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0
        assert {call.code() for call in calls} <= {grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE}
        log = process.stderr.read()
        assert log.endswith("ended\n")
        assert "Traceback" not in log


def test_exit_while_a_run_hangs(tmp_path, run_script):
    """SIGTERM ends the process while a run hangs, even before the hang is detected."""
    run_script(HANGING)
    with started(tmp_path, "--workers", 2, "--grace-s", 0.1) as (process, stub, _):
        hung = stub.Embed.future(pb.EmbedRequest(texts=["dog"]))
        assert "hanging\n" in iter(process.stderr.readline, "")
        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 1
        assert hung.code() is not grpc.StatusCode.OK
        assert "did not end within 0.2 s after its abort" in process.stderr.read()


def test_a_run_that_hangs_for_good(tmp_path, run_script):
    """A run that never ends fails its call, and the process exits with an error, so that it is restarted."""
    run_script(HANGING)
    with started(tmp_path, "--workers", 2, "--max-run-s", 1.5) as (process, stub, _):
        hung = stub.Embed.future(pb.EmbedRequest(texts=["dog"]))
        assert "hanging\n" in iter(process.stderr.readline, "")  # a worker computes it, alone in its batch
        assert stub.Embed(pb.EmbedRequest(texts=["cat"]), timeout=60).dim == 8

        assert hung.code() is grpc.StatusCode.INTERNAL
        assert "did not end in time" in hung.details()
        assert process.wait(30) == 1
        assert "did not end within 0.2 s after its abort" in process.stderr.read()
