"""HTTP server of `/healthz` and `/metrics`."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from serving.process.descriptors import max_scrapes, open_file_limit

logger = logging.getLogger(__name__)

CONNECTION_S = 10.0
"""Maximum seconds of a connection; each has a thread."""


class MetricsServer:
    """HTTP server with one thread that accepts connections and one for each connection."""

    def __init__(
        self, registry: CollectorRegistry, listener: socket.socket, *, health_problem: Callable[[], str] = lambda: ""
    ) -> None:
        """Start the thread.

        Args:
            registry: the metrics.
            listener: socket that listens.
            health_problem: returns why the server cannot serve; empty if it can. Called for each `/healthz`.
        """
        self._server = _Server(listener, _routes(make_wsgi_app(registry), health_problem))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop listening. May be called again."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _routes(metrics: Callable[..., Any], health_problem: Callable[[], str]) -> Callable[..., Any]:
    """Return a WSGI application with the two pages. Other paths are 404, so that a misspelt probe fails."""

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        path, method = environ["PATH_INFO"].rstrip("/"), environ["REQUEST_METHOD"]
        if path == "/metrics":
            return metrics(environ, start_response)
        if path != "/healthz":
            status, text = "404 Not Found", "no such page; see /metrics and /healthz"
        elif method not in ("GET", "HEAD"):
            status, text = "405 Method Not Allowed", "use GET or HEAD"
        elif problem := health_problem():
            status, text = "503 Service Unavailable", problem
        else:
            status, text = "200 OK", "ok"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [] if method == "HEAD" else [f"{text}\n".encode()]

    return app


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, app: Callable[..., Any]) -> None:
        self._open: dict[socket.socket, float] = {}
        """Open connections, oldest first -> monotonic time of their start."""
        self._lock = threading.Lock()
        self._max_open = max_scrapes(open_file_limit())
        address = listener.getsockname()
        super().__init__(address, _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.server_address = listener, address
        self.server_name, self.server_port = str(address[0]), address[1]  # without a lookup of this machine's name
        self.setup_environ()
        self.set_app(app)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection. Close the oldest if there are too many: a scrape ends within milliseconds."""
        with self._lock:
            self._open[request] = time.monotonic()
            for connection in list(self._open)[: -self._max_open]:
                self._end(connection)
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """Close connections older than CONNECTION_S; called twice a second."""
        with self._lock:
            for connection, started_s in list(self._open.items()):
                if time.monotonic() - started_s > CONNECTION_S:
                    self._end(connection)

    def shutdown_request(self, request: Any) -> None:
        """Remove a connection that has ended."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def _end(self, connection: socket.socket) -> None:
        """Shut down a connection; its thread then ends by itself."""
        del self._open[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error at level debug only: the client causes it."""
        logger.debug("a request to the metrics port failed", exc_info=True)


class _Handler(WSGIRequestHandler):
    timeout = CONNECTION_S

    def handle(self) -> None:
        with suppress(OSError):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log no line for each scrape."""
