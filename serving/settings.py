"""Settings of the server: flags, or environment variables of the same names with BERTLINE_ before them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Literal

from pydantic import Field, FilePath, ValidationError, model_validator
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, SettingsConfigDict, SettingsError

from serving.core.budget import default_budget
from tasks.bounds import MAX_BATCH_TOKENS
from tasks.machine import available_cpus

TRACE_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
"""As all programs with OpenTelemetry know it."""

CLIENT_VARIABLES = {"BERTLINE_TARGET", "BERTLINE_TOKEN", "BERTLINE_TLS_CA"}
"""Of the command `bertline`, which may run beside the server."""
_OF_KUBERNETES = re.compile(r"BERTLINE_(\w+_)?(SERVICE|PORT)_")
"""It sets such of each Service that is called bertline or bertline-..."""


class Settings(BaseSettings):
    """Serve a directory of models over gRPC, with Prometheus metrics over HTTP.

    Each flag is an environment variable too: --metrics-port is BERTLINE_METRICS_PORT; the flag wins. How a model treats
    text is not set here: its manifest says it. One line is printed when everything is loaded. SIGTERM drains.
    --print-config prints all settings and where each comes from, --version the versions; both then end.
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
    """Directory of models: <models-dir>/<name>/<version>/manifest.json."""
    poll_s: float = Field(2.0, ge=0, allow_inf_nan=False)
    """Seconds between looks for models that are new, replaced or gone; 0 for none. SIGHUP looks at once. Larger where
    the directory lies on slow or metered storage."""
    max_versions: int | None = Field(None, ge=1)
    """Versions of each model to serve, the highest that can be loaded. Unset: all. Fewer save memory; 1 swaps each
    model for its next version, for which both are in memory for a moment."""
    strict: bool = False
    """Do not start unless every version can be loaded. Otherwise those that can be are served, and the log, ListModels
    and the metrics tell of the others; only a server without any model ends."""
    host: str = Field("127.0.0.1", min_length=1)
    """Address to listen on; 0.0.0.0 for all. Without --tls-cert whoever listens on the way reads texts and tokens."""
    port: int = Field(50051, ge=0, le=65535)
    """gRPC port; 0 takes any free one, which the ready line names."""
    metrics_port: int = Field(9090, ge=0, le=65535)
    """HTTP port of /metrics; 0 takes any free one."""
    metrics_host: str | None = None
    """Address of /metrics, which asks for no token and speaks no TLS. Unset: that of --host."""

    tls_cert: FilePath | None = None
    """Certificate of the server in PEM, followed by those that lead to its authority: speaks TLS. Read again when the
    file changes, so that a renewal needs no restart; so are --tls-key, --tls-client-ca and --tokens-file."""
    tls_key: FilePath | None = None
    """Its private key in PEM, without a password."""
    tls_client_ca: FilePath | None = None
    """Certificates of authorities in PEM: clients then must show a certificate of one of them (mutual TLS)."""
    tokens_file: FilePath | None = None
    """File of bearer tokens, one a line (lines that begin with # are left out): every call must carry one of them as
    metadata `authorization: Bearer TOKEN`. Give each client one of its own: tokens can be replaced one by one."""
    open_health: bool = False
    """Let the health service be called without a token, as Kubernetes' probes do."""

    workers: int = Field(default_factory=available_cpus, ge=1, le=1024)
    """Cores to compute with, by default all that this process may use: as many batches at the same time, or fewer, of
    models whose manifest wants several threads a batch. More than there are only adds memory."""
    max_batch_tokens: int | None = Field(None, ge=1, le=MAX_BATCH_TOKENS)
    """Cap of a batch in padded tokens, for all models. Unset: what each manifest says, measured at export. Larger
    batches may raise throughput on a GPU; on a CPU they mostly raise latency."""
    num_threads: int | None = Field(None, ge=1)
    """Cores of one batch, for all models. Unset: what each manifest says, measured at export for the most throughput.
    More may make a single long text on an otherwise idle machine quicker, at the cost of throughput."""
    max_queue_s: float = Field(10.0, gt=0, allow_inf_nan=False)
    """What would wait and compute longer, by what was learnt of the models' speed, is refused with RESOURCE_EXHAUSTED.
    Larger absorbs longer bursts, and makes the last in the queue wait longer."""
    max_run_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    """A batch that computes longer hangs: it is aborted, its calls fail, and health says NOT_SERVING until it ends;
    if it does not end within 5 s, the server exits. More for long sequences on a slow machine."""
    cache_bytes: int = Field(0, ge=0)
    """Memory for replies that are sent again to who asks exactly the same, those not asked for longest dropped first; a
    change of the models empties it. 0: no cache. Worth it where queries repeat; the metrics tell how often they do."""
    max_request_bytes: int = Field(4 * 2**20, ge=1, le=2**31 - 1)
    """Bytes of the largest request message. A text that is read in windows takes up to 60 bytes of memory a byte (Tag,
    Embed; 150 for Answer), most where each character is a token; other texts take a few. Lower it where memory is
    short."""
    max_texts: int = Field(8192, ge=1)
    """Most inputs of a request, and most choices, contexts or targets in all of them; beyond it INVALID_ARGUMENT."""
    max_chars: int = Field(1_000_000, ge=1)
    """Most characters of a text, checked before it is tokenised. What is not read in windows may have no more than 250
    for each token of the model's max_seq_length. Lower it to bound what one call may cost."""
    max_concurrent_per_client: int | None = Field(None, ge=1)
    """Calls that a client may have under way; beyond it RESOURCE_EXHAUSTED. A client is a token, or without tokens an
    address: set it where one of several clients must not take all of the queue. Unset: no limit."""
    buffer_bytes: int = Field(default_factory=default_budget, ge=2**20)
    """Memory for messages: half for those on their way, half for requests that have come and for replies that wait to
    be read. What finds no room is refused with RESOURCE_EXHAUSTED. By default an eighth of the memory that this process
    may use, from 32 to 256 MiB. At least four times --max-request-bytes; more for many large requests at one time."""
    receive_s: float = Field(60.0, gt=0, le=86_400)
    """Seconds within which a message must have come; later ones are refused. Raise it for clients on slow networks."""
    max_connections: int = Field(4096, ge=1, le=2**31 - 1)
    """Connections at one time; further ones are closed at once."""
    keepalive_time_s: float = Field(60.0, gt=0, le=86_400)
    """A connection that was silent for so long is pinged. Lower it where a proxy closes silent connections earlier."""
    keepalive_timeout_s: float = Field(20.0, gt=0, le=86_400)
    """A ping without reply for so long ends its connection, and the calls of a client that vanished leave the queue."""
    max_connection_age_s: float | None = Field(None, gt=0, le=86_400 * 365)
    """Connections older than that are closed once their calls have ended, so that clients spread anew over replicas.
    Unset: never."""
    max_connection_grace_s: float = Field(60.0, gt=0, le=86_400)
    """Calls of a connection that is too old are cancelled after so long."""

    log_format: Literal["text", "json"] = "text"
    """Of the log on stderr: for people, or one JSON object a line."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe lines to log."""
    log_calls: Literal["none", "failed", "all"] = "failed"
    """Calls that get a line of their own, with request id, status, sizes and durations. `all` costs some 15 us a call.
    Of failed ones, the first 50 a second. At level info."""
    trace_endpoint: str | None = Field(default_factory=lambda: os.environ.get(TRACE_VARIABLE))
    """OpenTelemetry collector (OTLP over gRPC), such as http://127.0.0.1:4317, to send a trace of each call to. Unset:
    OTEL_EXPORTER_OTLP_ENDPOINT, and without that no traces."""
    trace_sample: float = Field(1.0, ge=0, le=1)
    """Share of calls that are traced, of those that come without a trace of their own to belong to."""

    grace_s: float = Field(10.0, ge=0, allow_inf_nan=False)
    """Seconds that calls in flight may take to finish after SIGTERM."""

    @model_validator(mode="after")
    def _check_tls(self) -> Settings:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("--tls-cert (BERTLINE_TLS_CERT) and --tls-key (BERTLINE_TLS_KEY) need each other")
        if self.tls_client_ca and not self.tls_cert:
            raise ValueError("--tls-client-ca (BERTLINE_TLS_CLIENT_CA) needs --tls-cert and --tls-key")
        return self

    @model_validator(mode="after")
    def _check_buffer(self) -> Settings:
        if self.buffer_bytes < 4 * self.max_request_bytes:
            raise ValueError(
                f"--buffer-bytes (BERTLINE_BUFFER_BYTES): {self.buffer_bytes} do not hold four requests of "
                f"--max-request-bytes, {self.max_request_bytes}; raise the one or lower the other"
            )
        return self

    @model_validator(mode="after")
    def _check_threads(self) -> Settings:
        if self.num_threads is not None and self.num_threads > self.workers:
            raise ValueError(
                f"--num-threads (BERTLINE_NUM_THREADS): a batch cannot take {self.num_threads} of the {self.workers} "
                "cores that --workers says"
            )
        return self


Settings.__doc__ = cleandoc(Settings.__doc__ or "")  # as --help shows it


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """Settings from flags and environment.

    Raises:
        ValueError: naming every setting that is wrong, in one line.
    """
    try:
        return CliApp.run(Settings, cli_args=None if arguments is None else list(arguments))
    except SettingsError as error:
        raise ValueError(f"{str(error).removeprefix('error parsing CLI: ')}; see --help") from error
    except ValidationError as error:
        raise ValueError("; ".join(_problem(item) for item in error.errors())) from error


def unknown_variables() -> list[str]:
    """Variables of the environment that begin as settings do and are none: mistyped ones would have no effect."""
    known = {f"BERTLINE_{name.upper()}" for name in Settings.model_fields} | CLIENT_VARIABLES
    names = (name for name in os.environ if name.upper().startswith("BERTLINE_") and name.upper() not in known)
    return sorted(name for name in names if not _OF_KUBERNETES.match(name))


def _problem(error: object) -> str:
    assert isinstance(error, dict)
    if not error["loc"]:
        return str(error["ctx"]["error"])
    name = str(error["loc"][0])
    return (
        f"--{name.replace('_', '-')} (BERTLINE_{name.upper()}): "
        f"{error['msg'][0].lower()}{error['msg'][1:]}: `{error['input']}`"
    )
