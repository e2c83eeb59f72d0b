"""Tests of hubs that want to do harm: they send without end, drip, loop, or name files outside the cache."""

import gzip
import itertools
import json
import time

import pytest

from tests.hub import NAME, Repository, leftovers, refusal
from training.checkpoint import hub_limits
from training.checkpoint.hub import resolve_checkpoint
from training.checkpoint.reader import load_model

LISTING, FILE, STORAGE = "/api/models/", "/resolve/", "/storage/"


def start(handler, status=200, **headers):
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()


def endless(part, status=200, data=b"x" * 65536, first=b"", pause_s=0.0, **headers):
    """Return an attack on paths with a part: a reply that never ends."""

    def attack(handler, path):
        if part not in path or handler.command != "GET":
            return False
        start(handler, status, **headers)
        handler.wfile.write(first)
        while True:
            handler.wfile.write(data)
            time.sleep(pause_s)

    return attack


def dripping_headers(handler, path):
    """Send one header after the other."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
    for number in itertools.count():
        handler.wfile.write(b"X" if number else b"A: ")
        time.sleep(0.02)


def continuing(handler, path):
    """Ask for more, again and again."""
    while True:
        handler.wfile.write(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def redirecting(part, **headers):
    """Return an attack on paths with a part: a redirect without a place, or to the next address."""

    def attack(handler, path):
        if part not in path:
            return False
        start(handler, 302, **{name: value.format(path) for name, value in headers.items()}, Content_Length="0")
        return True

    return attack


ENDLESS = {
    "listing": (endless(LISTING, first=b'{"id": "'), "sends more than 16,777,216 bytes"),
    "gzip": (endless(LISTING, data=gzip.compress(bytes(2**24)), Content_Encoding="gzip"), "sends a compressed reply"),
    "error": (endless(LISTING, status=404), "sends more than 1,048,576 bytes"),
    "redirect": (endless(LISTING, status=302, Location="/x"), "sends more than 1,048,576 bytes"),
    "file": (endless(STORAGE), "sends more than 1,"),
    "small file": (endless(FILE), "sends more than 1,"),
    "error of a file": (endless(STORAGE, status=500), "500 Server Error"),
    "chunk": (endless(STORAGE, data=b"1" * 65536, Transfer_Encoding="chunked"), "broke off ("),
    "continue": (continuing, "sends more than 1,048,576 bytes"),
    "drip": (endless(LISTING, data=b" ", pause_s=0.02), "sends less than 65,536 bytes in "),
    "drip of a file": (endless(STORAGE, data=b" ", pause_s=0.02, Content_Length="999999"), "sends less than 65,536"),
    "drip of headers": (dripping_headers, "sends less than 65,536 bytes in "),
    "round": (redirecting(LISTING, Location="{}x"), "Exceeded 30 redirects"),
    "round for files": (redirecting(FILE, Location="{}x"), "sends 100 replies without an end"),
    "nowhere": (redirecting(FILE), "cannot download"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_what_does_not_end(hub, tmp_path, monkeypatch, name):
    """A download that does not end is refused soon, in one line, and the next one is whole."""
    hub.attack, message = ENDLESS[name]
    monkeypatch.setattr(hub_limits, "SLOW_S", 0.2 if "drip" in name else 60.0)
    monkeypatch.setattr("time.sleep", lambda seconds, sleep=time.sleep: sleep(min(seconds, 0.05)))
    start_s = time.monotonic()

    line = refusal()

    assert message in line
    assert time.monotonic() - start_s < 10
    assert "model.safetensors" not in leftovers(tmp_path)
    hub.attack = lambda handler, path: False
    monkeypatch.setattr(hub_limits, "SLOW_S", 60.0)
    load_model(resolve_checkpoint(NAME), "embedding")


def bad_values(tmp_path):
    """Return names that would leave a folder, and values that are no names."""
    return ["../../../x", str(tmp_path / "x"), "a\\..\\x", "x\0y", "x\ny", "..", 7, None, ["x"]]


@pytest.fixture
def untouched(hub, tmp_path):
    """Check that nothing changed outside the cache, and that the right hub can be used afterwards."""

    def outside():
        found = [*tmp_path.parent.iterdir(), *tmp_path.rglob("*")]
        return sorted(path for path in found if tmp_path / "cache" not in [path, *path.parents])

    (tmp_path / "victim").write_text("")
    before = outside()
    yield
    assert outside() == before
    assert "model.safetensors" not in leftovers(tmp_path)
    hub.listing, hub.headers = {}, {}
    load_model(resolve_checkpoint(NAME), "embedding")


@pytest.mark.parametrize("key", ["sha", "id", "blobId", "sha256", "size"])
def test_names_in_the_listing(hub, tmp_path, untouched, key):
    """A commit, a repository or a digest that is no such name is no answer of the hub."""
    file = {"rfilename": "config.json", "size": 1, "blobId": "0" * 40, "lfs": None}
    for value in bad_values(tmp_path):
        if value is None and key in ("blobId", "size"):
            continue  # may be left out
        if key == "sha256":
            changed = {"lfs": {"sha256": value, "size": 1, "pointerSize": 1}}
        else:
            changed = {key: -7 if (key, value) == ("size", 7) else value}
        hub.listing = changed if key in ("sha", "id") else {"siblings": [{**file, **changed}]}

        assert refusal() == f"`{hub.url}` does not answer as the Hugging Face hub; check HF_ENDPOINT", value


@pytest.mark.parametrize("name", ["X-Repo-Commit", "ETag", "X-Linked-Etag"])
@pytest.mark.parametrize("is_found", [True, False])
def test_names_in_headers(hub, tmp_path, untouched, name, is_found):
    """The library's names for files in its cache stay in it, also for a file that is not found."""
    if not is_found:
        hub.listing = {"siblings": [{"rfilename": "modules.json", "size": 1, "blobId": "0" * 40}]}
    for value in ("../../../x", str(tmp_path / "x"), "a\\..\\x", "..", '"../../victim"'):
        hub.headers = {name: value}

        assert f"sends `{name}: " in refusal()


def test_names_of_files(hub, tmp_path, untouched):
    """Files outside the repository, which modules and indices may name, are not asked for."""
    files = hub.repositories[NAME].files
    for value in bad_values(tmp_path)[:6]:
        index = json.dumps({"weight_map": {"a": value}}).encode()
        modules = json.dumps([{"type": "x.Transformer", "path": ""}, {"type": "x.Dense", "path": value}]).encode()
        changed = {"config.json": files["config.json"], "model.safetensors.index.json": index, "modules.json": modules}
        others = {value: b"x", f"{value}/config.json": b"{}", f"{value}/model.safetensors": b"x"}
        hub.repositories["org/bad"] = Repository({**changed, **others})

        path = resolve_checkpoint("org/bad")

        assert not {value, *others} & set(hub.downloads())
        with pytest.raises(ValueError, match=r"(index|modules)\.json` names"):
            load_model(path, "embedding")
