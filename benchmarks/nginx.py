"""nginx in front of servers, with the configuration of `deploy/`."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

CONFIG = Path(__file__).parents[1] / "deploy/nginx.conf"


class Proxy(NamedTuple):
    """Addresses of nginx."""

    grpc: str
    http: str


@contextmanager
def running_nginx(folder: Path, targets: Sequence[str], changes: Mapping[str, str] | None = None) -> Iterator[Proxy]:
    """Run nginx with `deploy/nginx.conf` in front of servers, and yield its addresses.

    Args:
        folder: folder for its files.
        targets: addresses of the servers.
        changes: text of the configuration to replace, and the new text.

    Raises:
        ValueError: if nginx does not start.
    """
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        proxy = Proxy(*(f"127.0.0.1:{found.getsockname()[1]}" for found in (first, second)))
    replaced = {
        "server 127.0.0.1:50051;": " ".join(f"server {item};" for item in targets),
        "listen 8443": f"listen {proxy.grpc}",
        "listen 8444": f"listen {proxy.http}",
        "/tmp/bertline-nginx": str(folder / "nginx"),
        **(changes or {}),
    }
    text = CONFIG.read_text("utf-8")
    for old, new in replaced.items():
        text = text.replace(old, new)
    path, errors = folder / "nginx.conf", folder / "nginx.log"
    path.write_text(f"daemon off;\n{text}")
    with errors.open("w") as log:
        process = subprocess.Popen(["nginx", "-c", path], stderr=log)
    try:
        address, ends = proxy.grpc.split(":"), time.monotonic() + 10
        while time.monotonic() < ends and process.poll() is None:
            with suppress(ConnectionRefusedError), socket.create_connection((address[0], int(address[1]))):
                break
            time.sleep(0.02)
        else:
            raise ValueError(f"nginx did not start: {errors.read_text().strip() or 'it printed no error'}")
        yield proxy
    finally:
        process.terminate()
        process.wait(10)
