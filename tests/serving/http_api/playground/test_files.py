"""Files of the page to try the models in: their routes, headers and content."""

import re

import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.http_api import server_routes
from tests.serving.conftest import serve
from tests.serving.http_api.requests import port_of, post, send

FOLDER = server_routes.PAGE
FILES = sorted(path for path in FOLDER.iterdir() if path.suffix in server_routes.MEDIA_TYPES)
SCRIPTS = [path for path in FILES if path.suffix == ".js"]
MAX_BYTES = 200_000
DANGEROUS = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser")
STORED = re.compile(r"localStorage|sessionStorage|indexedDB|document\.cookie")


def test_every_file_is_served(server):
    """Each file has its route, its type and the headers that keep other code out; the page is at `/`."""
    for path in FILES:
        reply = send(server, "GET", f"/playground/{path.name}")

        assert (reply.status, reply.data) == (200, path.read_bytes()), path
        assert reply.headers["content-type"] == server_routes.MEDIA_TYPES[path.suffix]
        assert reply.headers["content-security-policy"] == server_routes.POLICY
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert reply.headers["cache-control"] == "no-cache"
    assert post(server, "/", {"inputs": "the cat"}).status == 200  # TEI's route at the same path
    assert send(server, "GET", "/").data == (FOLDER / "index.html").read_bytes()
    assert send(server, "HEAD", "/").headers["content-length"] == str((FOLDER / "index.html").stat().st_size)


def test_every_file_is_used():
    """Each file is named by the page, or imported by a module that is; modules import what others export.

    Together they have less than 200 kB.
    """
    page = (FOLDER / "index.html").read_text("utf-8")
    wanted = re.findall(r'(?:src|href)="playground/([\w.]+)"', page)
    for name in (item for item in wanted if item.endswith(".js")):
        text = (FOLDER / name).read_text("utf-8")
        for names, module in re.findall(r'^import \{ (.*) \} from "\./(\w+\.js)";$', text, re.MULTILINE):
            exported = re.findall(
                r"^export (?:async )?(?:function|const|class) (\w+)", (FOLDER / module).read_text("utf-8"), re.MULTILINE
            )
            assert {*names.split(", ")} <= {*exported}, name
            if module not in wanted:
                wanted.append(module)

    assert sorted({*wanted, "index.html"}) == [path.name for path in FILES]
    assert sum(path.stat().st_size for path in FILES) < MAX_BYTES


def test_nothing_comes_from_elsewhere():
    """No file names another server; the only address is the namespace of SVG."""
    addresses = {found for path in FILES for found in re.findall(r"(?:https?:)?//[\w.]+", path.read_text("utf-8"))}

    assert addresses <= {"http://www.w3.org"}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_text_never_becomes_code(path):
    """No module makes HTML or code of a text, or stores anything in the browser."""
    text = path.read_text("utf-8")

    assert not DANGEROUS.search(text)
    assert not STORED.search(text)


def test_operations_name_rpcs():
    """The requests that the page makes are RPCs of the server."""
    named = re.findall(r'\brpc: "(\w+)"', (FOLDER / "operations.js").read_text("utf-8"))

    assert len(named) >= 9
    assert {*named} <= {method.name for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods}


@pytest.mark.parametrize("path", ["/playground/absent.js", "/playground/__init__.py", "/playground/..%2f__init__.py"])
def test_other_files_are_not_there(server, path):
    """Only files of the page are served."""
    reply = send(server, "GET", path)

    assert reply.status == 404
    assert reply.error["reason"] == "METHOD_NOT_FOUND"


def test_the_page_needs_no_token(embedder, tmp_path):
    """The page is there without a token, so that one can be entered; what it knows of the server is not."""
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token")
    with serve(embedder, http_port=0, tokens_file=tokens) as running:
        pages = [send(running, "GET", path) for path in ("/", "/playground/app.js")]
        refused = [send(running, "GET", "/playground/server"), post(running, "/v1/list-models", {})]
        answered = send(running, "GET", "/playground/server", authorization="Bearer a-token")

    assert [reply.status for reply in pages] == [200, 200]
    assert [reply.status for reply in refused] == [401, 401]
    assert answered.json() == {"grpc_port": running.server.port, "tls": False}


def test_the_ready_line_names_the_page(server):
    """The line of a server that is ready has the address of the page."""
    assert f", HTTP API and playground on http://127.0.0.1:{port_of(server)}/," in str(server.server.ready())
