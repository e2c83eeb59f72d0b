"""The benchmark of small calls that leave together."""

from multiprocessing import Pipe

import pytest

from benchmarks.coalescing import Load, _serve
from bertline.testing import FakeServer


@pytest.mark.parametrize("threads", [True, False])
def test_an_error_of_one_caller_ends_the_measurement(tmp_path, threads):
    """A call that fails is an error, not a lower rate."""
    texts = tmp_path / "texts.txt"
    texts.write_text("one\ntwo\n", "utf-8")
    ours, other = Pipe()
    with FakeServer() as server:
        server.fail("INTERNAL", after=9)
        ours.send(Load(server.target, texts, seconds=0.2, callers=3, coalesce=True, threads=threads))
        ours.close()  # `_serve` ends after this load in any case

        with pytest.raises(ValueError, match=r"Client, 3 callers, together: .* \(made to fail\)"):
            _serve(other)
