"""A client of HTTP/2 that does what those of gRPC never do: it reads only when told to, and pings at will."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS = 1, 4
ENHANCE_YOUR_CALM = 11
MAX_CONCURRENT_STREAMS = 3


class Connection:
    """A connection to a server."""

    def __init__(self, target):
        host, port = target.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._stream = -1
        self._socket.sendall(PREFACE)
        self._send(SETTINGS, 0, 0, b"")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._socket.close()

    def call(self, path, message):
        """Send a call."""
        self._stream += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self._send(HEADERS, END_HEADERS, self._stream, b"".join(_field(*item) for item in fields.items()))
        data = struct.pack(">?I", False, len(message)) + message
        for start in range(0, len(data), 16_384):
            last = start + 16_384 >= len(data)
            self._send(DATA, END_STREAM if last else 0, self._stream, data[start : start + 16_384])

    def ping(self):
        """Send a ping."""
        self._send(PING, 0, 0, bytes(8))

    def frames(self):
        """Read: (type, payload) of each frame, until the server closes the connection."""
        while len(head := self._read(9)) == 9:
            yield head[3], self._read(int.from_bytes(head[:3], "big"))

    def _read(self, size):
        data = b""
        while len(data) < size and (more := self._socket.recv(size - len(data))):
            data += more
        return data

    def _send(self, kind, flags, stream, payload):
        head = len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream)
        self._socket.sendall(head + payload)


def _field(name, value):
    """A header field of HPACK: literal, not indexed, not compressed."""
    return b"\0" + b"".join(bytes([len(item)]) + item.encode() for item in (name, value))
