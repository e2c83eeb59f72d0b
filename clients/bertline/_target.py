"""Check of target addresses, before gRPC misreads them."""

from __future__ import annotations

import re
from typing import Any

MAX_PORT = 65535
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_RESOLVERS = {"dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds", "google-c2p"}
"""Schemes that gRPC resolves."""
_WITH_TLS = {"https", "grpcs", "grpc+tls", "grpc+ssl"}
_WITHOUT_PORTS = ("unix:", "unix-abstract:", "vsock:")
_PORT = re.compile(r"(?:(?:dns|ipv4|ipv6|xds):)?(?:.*/)?(?:\[[^]]*\]|[^:[\]]*):(\d+)/?", re.ASCII)
"""Host and port; an IPv6 address is in brackets."""


def check_target(target: Any) -> None:
    """Check a target.

    Raises:
        TypeError: if it is no string.
        ValueError: for an empty target, the URL of another protocol, and an invalid port.
    """
    if not isinstance(target, str):
        raise TypeError(f"`target` must be a string, `host:port`: `{target!r}`")
    if not target.strip():
        raise ValueError(f"a target must be `host:port`: `{target}`")
    if (found := _SCHEME.match(target)) and found[1].lower() not in _RESOLVERS:
        address = target[found.end() :].partition("/")[0] or "host"
        address += "" if re.search(r":\d+$", address) else ":port"
        tls = "; for TLS give `credentials` (the command: --tls-ca FILE)" if found[1].lower() in _WITH_TLS else ""
        raise ValueError(f"a target must be `host:port`, without `{found[0]}`: write `{address}`, not `{target}`{tls}")
    if not target.startswith(_WITHOUT_PORTS):
        for address in target.split(","):
            port = _PORT.fullmatch(address)
            if port and not 1 <= int(port[1][:20]) <= MAX_PORT:
                raise ValueError(f"the port of a target must be 1 to {MAX_PORT}, not {port[1]}: `{target}`")
