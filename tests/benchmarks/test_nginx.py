"""nginx for benchmarks."""

import time

import pytest

from benchmarks.nginx import running_nginx


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (
            "echo 'nginx: [emerg] unknown directive' >&2; exit 1",
            r"nginx did not start: nginx: \[emerg\] unknown directive",
        ),
        ("exit 0", "nginx did not start: it printed no error"),
    ],
)
def test_nginx_that_ends_is_an_error(tmp_path, monkeypatch, program, message):
    """If nginx ends at once, its error is raised at once."""
    path = tmp_path / "nginx"
    path.write_text(f"#!/bin/sh\n{program}\n", "utf-8")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    started = time.monotonic()

    with pytest.raises(ValueError, match=message), running_nginx(tmp_path, ["127.0.0.1:1"]):
        pass
    assert time.monotonic() - started < 5
