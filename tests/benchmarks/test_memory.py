import random

import pytest

from benchmarks.memory import MemoryCheck
from tests.serving.models import WORDS, write_model


@pytest.mark.slow
def test_growing_server_is_flagged(tmp_path):
    """The memory check flags a server that keeps its requests, and not the real server."""
    write_model(tmp_path / "models")
    texts = tmp_path / "texts.txt"
    texts.write_text(" ".join(random.Random(0).choices(WORDS, k=5000)), encoding="utf-8")
    check = MemoryCheck(models=tmp_path / "models", texts=texts, warm_up_s=3.0)

    assert not check.run("serving", 5.0).is_flagged
    assert check.run("benchmarks.growing_server", 15.0).is_flagged
