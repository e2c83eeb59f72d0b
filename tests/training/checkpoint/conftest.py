"""A hub with one repository, whose client has an empty cache and no token."""

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import get_session, reset_sessions

from tests.families import create
from tests.hub import NAME, HubServer, Repository


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Return a small BERT by transformers, with files that nobody needs."""
    directory = tmp_path_factory.mktemp("hub") / "tiny"
    create("bert", "embedding", directory)
    for name in ("tf_model.h5", "onnx/model.onnx", "pytorch_model.bin", "README.md", "training_args.bin"):
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"not needed")
    return directory


@pytest.fixture
def hub(tiny, tmp_path, monkeypatch):
    """Return a hub with the repository NAME."""
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with HubServer() as server:
        server.repositories[NAME] = Repository.of(tiny)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        for module in ("constants", "file_download"):
            monkeypatch.setattr(f"huggingface_hub.{module}.HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield server
        get_session().close()
        reset_sessions()  # this one may be offline
