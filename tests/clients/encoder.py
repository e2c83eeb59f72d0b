"""The fake server with attributes instead of methods."""

from __future__ import annotations

from typing import Any

import grpc

from bertline.testing import FakeServer

RPCS = ("Embed", "Classify", "Regress", "Choose", "Answer", "Tag", "FillMask", "Tokenize", "GetModel")


class FakeEncoder:
    """Counts and fails all calls but ListModels; what is set last replaces what was set before."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server

    @property
    def requests(self) -> Requests:
        """What came since they were cleared."""
        return Requests(self._server)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in ("fail_after", "refuse_first", "status", "delay"):
            self._server._faults.clear()
            if value:
                getattr(self, f"_set_{name}")(value)
            elif value == 0 and name == "fail_after":
                self._set_fail_after(0)

    def _set_fail_after(self, count: int) -> None:
        for method in RPCS:
            after = max(0, count - len(self.requests))
            self._server.fail("INTERNAL", "broken", method=method, after=after, times=None)

    def _set_refuse_first(self, count: int) -> None:
        for method in RPCS:
            self._server.overload(method=method, times=count, pushback_ms=None)

    def _set_status(self, status: tuple[grpc.StatusCode, str]) -> None:
        self._server.fail(*status, times=None)

    def _set_delay(self, seconds: float) -> None:
        for method in RPCS:
            self._server.delay(seconds, method=method)


class Requests(list[Any]):
    """The requests of a server."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(call.request for call in server.calls if call.method in RPCS)
        self._server = server

    def clear(self) -> None:
        """Forget those of the server, too."""
        super().clear()
        self._server.calls.clear()
