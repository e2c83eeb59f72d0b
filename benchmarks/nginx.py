"""nginx in front of servers, with the configuration of `deploy/`."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

CONFIG = Path(__file__).parents[1] / "deploy/nginx.conf"


@contextmanager
def running_nginx(folder: Path, targets: Sequence[str], changes: Mapping[str, str] | None = None) -> Iterator[str]:
    """Run nginx with `deploy/nginx.conf` in front of servers, and yield its target.

    Args:
        folder: folder for its files.
        targets: addresses of the servers.
        changes: text of the configuration to replace, and the new text.
    """
    with socket.create_server(("127.0.0.1", 0)) as found:
        target = f"127.0.0.1:{found.getsockname()[1]}"
    replaced = {
        "server 127.0.0.1:50051;": " ".join(f"server {item};" for item in targets),
        "listen 8443": f"listen {target}",
        "/tmp/bertline-nginx": str(folder / "nginx"),
        **(changes or {}),
    }
    text = CONFIG.read_text("utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    path = folder / "nginx.conf"
    path.write_text(f"daemon off;\n{text}")
    process = subprocess.Popen(["nginx", "-c", path], stderr=subprocess.DEVNULL)
    try:
        with grpc.insecure_channel(target) as channel:
            grpc.channel_ready_future(channel).result(10)
        yield target
    finally:
        process.terminate()
        process.wait(10)
