"""Server of all tasks with an HTTP port."""

import pytest

from tests.serving.conftest import serve


@pytest.fixture(scope="module")
def web(all_tasks):
    """Server of all tasks over gRPC and HTTP."""
    with serve(all_tasks[0], http_port=0) as running:
        yield running
