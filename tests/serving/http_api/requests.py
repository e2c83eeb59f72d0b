"""Plain HTTP requests to a server under test."""

import http.client
import json
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class HttpResult:
    """Status, headers and body of a reply."""

    status: int
    headers: dict
    data: bytes

    def json(self):
        return json.loads(self.data)

    @property
    def error(self):
        return self.json()["error"]


def port_of(server):
    """Return the HTTP port of a server in the test process."""
    return server.server._http.port


def send(server, method, path, body=None, **headers):
    """Send a request, a value as JSON, and return the result."""
    connection = http.client.HTTPConnection("127.0.0.1", port_of(server), timeout=30)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            fields.setdefault("content-type", "application/json")
        connection.request(method, path, data, fields)
        reply = connection.getresponse()
        return HttpResult(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
    finally:
        connection.close()


def post(server, path, body, **headers):
    return send(server, "POST", path, body, **headers)


@contextmanager
def raw_connection(server):
    """Open a TCP connection."""
    with socket.create_connection(("127.0.0.1", port_of(server)), timeout=30) as connection:
        yield connection


def head_of(path, **headers):
    """Return the head of a POST request."""
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def exchange(server, *parts):
    """Send bytes in parts, and return all that comes until the connection is closed."""
    with raw_connection(server) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(0.01 * (len(parts) > 1))
        return read_all(connection)


def _receive(connection, *, has_reply):
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        if has_reply:
            return b""
        raise


def read_all(connection):
    """Read until the server closes the connection, or resets it after a reply because it left a request unread."""
    parts = []
    while part := _receive(connection, has_reply=bool(parts)):
        parts.append(part)
    return b"".join(parts)
