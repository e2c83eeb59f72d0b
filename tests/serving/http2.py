"""HTTP/2 client for unusual behaviour: it reads only on demand, and pings at any time."""

import socket
import struct
import threading
from contextlib import suppress

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, END_HEADERS = 1, 4
ACK = 1
ENHANCE_YOUR_CALM = 11
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4


class Connection:
    """Connection to a server."""

    def __init__(self, target, settings=None):
        host, port = target.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=10)
        self._stream = -1
        self._sending = threading.Lock()
        self._socket.sendall(PREFACE)
        self.send(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *item) for item in (settings or {}).items()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the connection."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def call(self, path, message):
        """Send a call."""
        stream = self.open(path)
        data = struct.pack(">?I", False, len(message)) + message
        for start in range(0, len(data), 16_384):
            last = start + 16_384 >= len(data)
            self.send(DATA, END_STREAM if last else 0, stream, data[start : start + 16_384])

    def open(self, path, more=()):
        """Start a call with more header fields but without its message; return its stream."""
        self._stream += 2
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "test",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self.send(HEADERS, END_HEADERS, self._stream, b"".join(_field(*item) for item in (*fields.items(), *more)))
        return self._stream

    def ping(self):
        """Send a ping."""
        self.send(PING, 0, 0, bytes(8))

    def frames(self):
        """Yield (type, payload) of each frame until the server closes the connection."""
        for kind, _, _, payload in self.all_frames():
            yield kind, payload

    def all_frames(self):
        """Yield (type, flags, stream, payload) of each frame until the server closes the connection."""
        while len(head := self._read(9)) == 9:
            stream = int.from_bytes(head[5:], "big") & 0x7FFFFFFF
            yield head[3], head[4], stream, self._read(int.from_bytes(head[:3], "big"))

    def _read(self, size):
        data = b""
        while len(data) < size and (more := self._socket.recv(size - len(data))):
            data += more
        return data

    def send(self, kind, flags, stream, payload):
        """Send a frame."""
        head = len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream)
        with self._sending:
            self._socket.sendall(head + payload)


def _field(name, value):
    """Return a header field of HPACK: literal, not indexed, not compressed."""
    found = [item if isinstance(item, bytes) else item.encode() for item in (name, value)]
    return b"\0" + b"".join(_length(len(item)) + item for item in found)


def _length(value):
    """Return an integer of HPACK with a prefix of seven bits."""
    if value < 127:
        return bytes([value])
    groups, value = bytearray([127]), value - 127
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
