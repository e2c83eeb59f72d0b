"""Settings of the server: flags, or environment variables with the same names and the prefix BERTLINE_."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from importlib.metadata import packages_distributions, version
from inspect import cleandoc
from pathlib import Path
from typing import Literal

from pydantic import Field, FilePath, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, SettingsConfigDict, SettingsError

from serving.core.errors import lower_first
from serving.core.request_memory import default_budget
from tasks.bundle.machine import available_cpus
from tasks.bundle.manifest import MAX_BATCH_TOKENS, SPACE
from tasks.ranking import Ranking
from tasks.registry import TASKS
from tasks.zero_shot import ZeroShot

TRACE_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""Standard variable of OpenTelemetry for the collector's address."""

CLIENT_VARIABLES = {"BERTLINE_TARGET", "BERTLINE_TOKEN", "BERTLINE_TLS_CA"}
"""Variables of the client's command `bertline`, which may run in the same environment."""
_GPU = Path("/dev/nvidiactl")
"""Device of NVIDIA's driver."""
_KUBERNETES_VARIABLE = re.compile(r"BERTLINE_(\w+_)?(SERVICE|PORT)_")
"""Variables that Kubernetes sets for each Service whose name begins with bertline."""


class Settings(BaseSettings):
    """Serve a directory of models over gRPC, with Prometheus metrics over HTTP.

    Each flag is also an environment variable: --metrics-port is BERTLINE_METRICS_PORT; the flag wins. A model's own
    settings, such as its sequence length, are in its manifest. When all models are loaded, the server prints one line
    with its addresses. SIGTERM and SIGINT drain it. --print-config prints all settings with their sources, --version
    the versions; both then exit.
    """

    model_config = SettingsConfigDict(
        env_prefix="BERTLINE_",
        cli_prog_name="python -m serving",
        cli_kebab_case=True,
        cli_hide_none_type=True,
        cli_implicit_flags=True,
        cli_exit_on_error=False,
        use_attribute_docstrings=True,
        frozen=True,
    )

    models_dir: CliPositionalArg[Path] = Path("models")
    """Directory of models, with the files <models-dir>/<name>/<version>/manifest.json."""
    poll_s: float = Field(2.0, ge=0, allow_inf_nan=False)
    """Seconds between scans of the directory for new, replaced and removed models; 0 turns polling off. SIGHUP scans
    immediately. Raise it for slow or metered storage."""
    max_versions: int | None = Field(None, ge=1)
    """Maximum number of versions to serve of each model; the highest ones that can be loaded. Unset: all. Lower it to
    save memory; with 1, both versions are in memory during a change."""
    default_model: dict[str, str] = Field(default_factory=dict)
    """Model that answers requests without a name, as `task=name`, once for each task: those of the models, `rerank` and
    `zero-shot`. Unset: the model of the task that was loaded first; none if several were there at the start."""
    space: dict[str, str] = Field(default_factory=dict)
    """Space that the vectors of a model must have, as `name=space`; once for each model. Versions of another space are
    not loaded, so that stored vectors stay comparable with new ones. `bertline models --json` prints the spaces."""
    strict: bool = False
    """Exit at start if any version cannot be loaded. Without it, the server exits only if none can be loaded."""
    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 for all. Use --tls-cert on other than loopback addresses, or texts and tokens can
    be read on the network."""
    port: int = Field(50051, ge=0, le=65535)
    """gRPC port; 0 takes any free one, which the ready line names."""
    metrics_port: int = Field(9090, ge=0, le=65535)
    """HTTP port of /metrics (Prometheus) and /healthz; 0 takes any free one."""
    metrics_host: str | None = None
    """Address of the metrics port, which has neither tokens nor TLS. Unset: that of --host."""
    http_port: int | None = Field(None, ge=0, le=65535)
    """Port of the HTTP API and of the page to try the models in; 0 takes any free one. Unset: no HTTP API. It needs the
    extra or group `http`, and has the host, tokens, TLS and limits of the gRPC port."""
    http_origins: tuple[str, ...] = ()
    """Origins of pages that may call the HTTP API from a browser (CORS), such as https://example.org; `*` for any."""
    http_hosts: tuple[str, ...] = ()
    """Names by which the HTTP API may be called, in addition to addresses, localhost and --host; `*` for any. Without
    tokens and TLS, other names are refused: a page whose name resolves to the server could use it (DNS rebinding)."""
    http_gzip: bool = False
    """Compress replies of the HTTP API for clients that accept gzip. For slow networks: vectors shrink to half in JSON
    and to three quarters in base64."""
    ready_fd: int | None = Field(None, ge=3, le=2**31 - 1)
    """File descriptor inherited from the process that starts the server, for use with --port 0. When ready, the server
    writes a JSON line with its addresses to it and closes it."""

    tls_cert: FilePath | None = None
    """PEM file of the server's certificate and its chain; turns TLS on. Read again when it changes, as are --tls-key,
    --tls-client-ca and --tokens-file."""
    tls_key: FilePath | None = None
    """PEM file of the private key of --tls-cert, without a password."""
    tls_client_ca: FilePath | None = None
    """PEM file of certificate authorities. Each client must present a certificate of one of them (mutual TLS)."""
    tokens_file: FilePath | None = None
    """File of bearer tokens, one on each line (lines that begin with # are comments). Each call must carry one of them
    as metadata `authorization: Bearer TOKEN`. Give each client its own token, so that it can be replaced alone."""
    open_health: bool = False
    """Allow calls of the health service without a token, as Kubernetes' gRPC probes make them."""

    processes: int = Field(1, ge=1, le=256)
    """Number of processes that serve the same ports. Each has a part of the cores, memory, cache and connections, and a
    supervisor replaces those that end. Raise it where one process of Python is the limit: many cores, or a GPU. auto:
    one for every 8 cores; with a GPU of NVIDIA one for every 2, at most 8."""
    workers: int = Field(default_factory=available_cpus, ge=1, le=1024)
    """Number of cores for inference, and of batches at the same time (fewer for models that use several threads a
    batch). Default: all cores of this process. More than that only costs memory."""
    max_batch_tokens: int | None = Field(None, ge=1, le=MAX_BATCH_TOKENS)
    """Maximum tokens of a batch, padding included, for all models. Unset: the value of each manifest, measured at
    export. Larger batches may raise throughput on a GPU; on a CPU they mostly raise latency."""
    num_threads: int | None = Field(None, ge=1)
    """Number of cores that one batch uses, for all models. Unset: the value of each manifest, measured at export for
    throughput. Raise it to answer single long texts faster on an idle machine, at the cost of throughput."""
    engine_fallback: bool = False
    """Serve models that were exported for OpenVINO on ONNX Runtime where OpenVINO is not installed, or its int8 sums
    overflow (x86 CPUs without VNNI); the manifest has the scores. Otherwise such a model is an error."""
    max_queue_s: float = Field(10.0, gt=0, allow_inf_nan=False)
    """Refuse requests whose estimated wait plus compute time exceeds these seconds. Larger values absorb longer bursts,
    but the last requests in the queue wait longer."""
    max_run_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    """Maximum seconds of one batch. A longer one is aborted: its calls fail, and the health status is NOT_SERVING until
    it ends; if it does not end within 5 s, the server exits. A model that takes longer at its start is not loaded.
    Raise it for long sequences on a slow machine."""
    canary_s: float = Field(60.0, ge=0, allow_inf_nan=False)
    """Seconds between canaries: runs of a known input and of the longest batch, which turn health to NOT_SERVING if the
    outputs are wrong or fail. The interval is longer where all would take more than 0.1% of a core; 0: only at load and
    after `POST /health`."""
    cache_bytes: int = Field(0, ge=0)
    """Memory in bytes for a cache of replies to identical requests; 0: no cache. Useful if queries repeat; the metrics
    show the hit rate."""
    max_request_bytes: int = Field(4 * 2**20, ge=1, le=2**31 - 1)
    """Maximum bytes of a request message. Lower it to save memory: tokenizing takes up to 60 bytes for each (Answer up
    to 140)."""
    max_texts: int = Field(8192, ge=1)
    """Maximum number of inputs of a request, and of choices, contexts or targets in all its inputs."""
    max_chars: int = Field(1_000_000, ge=1)
    """Maximum characters of a text, also with `truncate`. Texts that are not split into windows are also limited to 250
    characters for each token of the model's max_seq_length; `truncate` cuts them there. Lower it to limit the cost of a
    call."""
    max_concurrent_per_client: int | None = Field(None, ge=1)
    """Maximum number of concurrent calls of a client, which is a token, or an address if there are no tokens. Set it so
    that one client cannot fill the queue. Unset: no limit."""
    buffer_bytes: int = Field(default_factory=default_budget, ge=2**20)
    """Memory in bytes for messages: half for messages that are being received, half for received requests and unread
    replies. Beyond it, requests are refused. Default: an eighth of the available memory, 32 to 256 MiB. At least four
    times --max-request-bytes; raise it for many large requests at the same time."""
    receive_s: float = Field(60.0, gt=0, le=86_400)
    """Maximum seconds to receive a request message; slower ones are refused. Raise it for clients on slow networks."""
    max_connections: int = Field(4096, ge=1, le=2**31 - 1)
    """Maximum number of open connections; further ones are closed immediately."""
    keepalive_time_s: float = Field(60.0, gt=0, le=86_400)
    """Seconds without traffic after which a connection is pinged. Lower it if a proxy closes idle ones sooner."""
    keepalive_timeout_s: float = Field(20.0, gt=0, le=86_400)
    """Seconds to wait for the reply to a ping; then the connection is closed and its calls leave the queue."""
    max_connection_age_s: float | None = Field(None, gt=0, le=86_400 * 365)
    """Seconds after which a connection is closed, once its calls have ended, so that clients spread over new replicas.
    Unset: never."""
    max_connection_grace_s: float = Field(60.0, gt=0, le=86_400)
    """Seconds that calls of a connection older than --max-connection-age-s may take before they are cancelled."""

    log_format: Literal["text", "json"] = "text"
    """Format of the log on stderr and of the ready line on stdout: text for people, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity of log lines."""
    log_calls: Literal["none", "failed", "all"] = "failed"
    """Calls that get a log line (level info). `all` costs about 15 us per call; `failed` logs at most 50 lines a
    second."""
    trace_endpoint: str | None = Field(default_factory=lambda: os.environ.get(TRACE_VARIABLE))
    """Address of an OpenTelemetry collector (OTLP over gRPC) for traces of calls, such as http://127.0.0.1:4317. Unset:
    OTEL_EXPORTER_OTLP_ENDPOINT; if that is unset, too, no traces."""
    trace_sample: float = Field(1.0, ge=0, le=1)
    """Fraction of calls to trace, 0 to 1. A call that comes with a trace follows the decision of that trace."""

    grace_s: float = Field(10.0, ge=0, allow_inf_nan=False)
    """Seconds that running calls may take after SIGTERM before they are cancelled."""

    @field_validator("processes", mode="before")
    @classmethod
    def _choose_processes(cls, value: object) -> object:
        if value != "auto":
            return value
        return max(1, min(8, available_cpus() // 2) if _GPU.exists() else available_cpus() // 8)

    @field_validator("default_model")
    @classmethod
    def _check_tasks(cls, names: dict[str, str]) -> dict[str, str]:
        known = [*TASKS, Ranking.name, ZeroShot.name]
        if unknown := sorted(names.keys() - set(known)):
            raise ValueError(f"unknown task `{unknown[0]}` (one of: {', '.join(known)})")
        return names

    @field_validator("space")
    @classmethod
    def _check_spaces(cls, spaces: dict[str, str]) -> dict[str, str]:
        if wrong := [space for space in spaces.values() if not SPACE.fullmatch(space)]:
            raise ValueError(f"a space has 16 hexadecimal digits, unlike `{wrong[0]}`")
        return spaces

    @field_validator("ready_fd")
    @classmethod
    def _check_open(cls, fd: int | None) -> int | None:
        try:
            if fd is not None:
                os.fstat(fd)
        except OSError:
            raise ValueError(
                "not open; the process that starts the server must pass it on (`pass_fds` in Python)"
            ) from None
        return fd

    @model_validator(mode="after")
    def _check_together(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert (BERTLINE_TLS_CERT) and --tls-key (BERTLINE_TLS_KEY) must be set together")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("--tls-client-ca (BERTLINE_TLS_CLIENT_CA) needs --tls-cert and --tls-key")
        if self.buffer_bytes < 4 * self.max_request_bytes:
            raise ValueError(
                f"--buffer-bytes (BERTLINE_BUFFER_BYTES): `{self.buffer_bytes}` is less than four times "
                f"--max-request-bytes, `{self.max_request_bytes}`; raise the former or lower the latter"
            )
        if self.num_threads is not None and self.num_threads > self.workers:
            raise ValueError(
                f"--num-threads (BERTLINE_NUM_THREADS): `{self.num_threads}` is more than the cores of --workers, "
                f"`{self.workers}`; lower the former or raise the latter"
            )
        return self


Settings.__doc__ = cleandoc(Settings.__doc__ or "")  # without indentation, for --help


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Read the settings from flags and environment.

    Raises:
        ValueError: when settings are wrong. The message names each of them in one line.
    """
    try:
        return CliApp.run(Settings, cli_args=None if arguments is None else list(arguments))
    except SettingsError as error:
        raise ValueError(f"{str(error).removeprefix('error parsing CLI: ')}; see --help") from error
    except ValidationError as error:
        raise ValueError("; ".join(_problem(item) for item in error.errors())) from error


def unknown_variables() -> list[str]:
    """Return the environment variables with the prefix of settings that are not settings, such as mistyped ones."""
    known = {f"BERTLINE_{name.upper()}" for name in Settings.model_fields} | CLIENT_VARIABLES
    names = (name for name in os.environ if name.upper().startswith("BERTLINE_") and name.upper() not in known)
    return sorted(name for name in names if not _KUBERNETES_VARIABLE.match(name))


def _problem(error: object) -> str:
    assert isinstance(error, dict)
    if not error["loc"]:
        return str(error["ctx"]["error"])
    name, reason = str(error["loc"][0]), lower_first(error["msg"].removeprefix("Value error, "))
    return f"--{name.replace('_', '-')} (BERTLINE_{name.upper()}): {reason}: `{error['input']}`"


def missing_package(purpose: str, package: str | None, extra: str) -> ValueError:
    """Return the error of a flag whose libraries are not installed.

    Args:
        purpose: what needs them, such as a flag.
        package: the missing one.
        extra: extra of the server's wheel, or dependency group in a checkout, that has them.
    """
    command = f"python -m pip install --group {extra} -c constraints.txt"
    if names := packages_distributions().get("bertline_server"):
        wheel = f"{names[0].replace('-', '_')}-{version(names[0])}-py3-none-any.whl"
        command = f"python -m pip install 'dist/{wheel}[{extra}]'"  # pip would look for a name on PyPI
    return ValueError(f"{purpose} needs the package `{package}`: run `{command}`")
