"""Settings of the server: flags, or environment variables of the same names with BERTLINE_ before them."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from pathlib import Path

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, CliApp, CliPositionalArg, SettingsConfigDict, SettingsError

from tasks.cpus import available_cpus


class Settings(BaseSettings):
    """Serve a directory of models over gRPC, with Prometheus metrics over HTTP.

    Each flag is an environment variable too: --metrics-port is BERTLINE_METRICS_PORT; the flag wins. How a model treats
    text is not set here: its manifest says it. One line is printed when everything is loaded. SIGTERM drains.
    """

    model_config = SettingsConfigDict(
        env_prefix="BERTLINE_",
        cli_prog_name="python -m serving",
        cli_kebab_case=True,
        cli_hide_none_type=True,
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
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all. There is no TLS: keep it inside a trusted network."""
    port: int = Field(50051, ge=0, le=65535)
    """gRPC port; 0 takes any free one, which the ready line names."""
    metrics_port: int = Field(9090, ge=0, le=65535)
    """HTTP port of /metrics; 0 takes any free one."""
    workers: int = Field(default_factory=available_cpus, ge=1)
    """Cores to compute with, by default all that this process may use: as many batches at the same time, or fewer, of
    models whose manifest wants several threads a batch. More than there are only adds memory."""
    max_batch_tokens: int | None = Field(None, ge=1)
    """Cap of a batch in padded tokens, for all models. Unset: what each manifest says, measured at export. Larger
    batches may raise throughput on a GPU; on a CPU they mostly raise latency."""
    max_queue_s: float = Field(10.0, gt=0, allow_inf_nan=False)
    """What would wait and compute longer, by what was learnt of the models' speed, is refused with RESOURCE_EXHAUSTED.
    Larger absorbs longer bursts, and makes the last in the queue wait longer."""
    max_run_s: float = Field(60.0, gt=0, allow_inf_nan=False)
    """A batch that computes longer hangs: it is aborted, its calls fail, and health says NOT_SERVING until it ends;
    if it does not end within 5 s, the server exits. More for long sequences on a slow machine."""
    max_request_bytes: int = Field(4 * 2**20, ge=1, le=2**31 - 1)
    """Largest request message. Tokenising takes some 300 bytes of memory a byte of text, before anything is cut."""
    grace_s: float = Field(10.0, ge=0, allow_inf_nan=False)
    """Seconds that calls in flight may take to finish after SIGTERM."""


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


def _problem(error: object) -> str:
    assert isinstance(error, dict)
    name = str(error["loc"][0])
    return (
        f"--{name.replace('_', '-')} (BERTLINE_{name.upper()}): "
        f"{error['msg'][0].lower()}{error['msg'][1:]}: `{error['input']}`"
    )
