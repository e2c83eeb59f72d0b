"""Servers with an HTTP port, shared by all tests of the folder that change nothing of them."""

import pytest

from tests.serving.conftest import serve


@pytest.fixture(scope="session")
def web(all_tasks):
    """Server of all tasks over gRPC and HTTP."""
    with serve(all_tasks[0], http_port=0) as running:
        yield running
