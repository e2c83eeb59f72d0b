"""Description of the HTTP API in OpenAPI, and requests that are made from it."""

import json
import re
import subprocess
import sys

import pytest

from tests.serving.http_api.requests import port_of, post, send
from tests.serving.http_api.test_fuzz import REQUESTS


@pytest.fixture(scope="module")
def document(server):
    reply = send(server, "GET", "/openapi.json")
    assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
    return reply.json()


def refs(value):
    """Yield all references inside a value."""
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from refs(item)


def test_every_reference_exists(document):
    """Schemas that others name are there, and all of them are used."""
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    assert set(refs(document)) == known


def test_every_route_is_described(document, server):
    """Each route has a summary, answers at its path, and its parameters are those of the path."""
    for path, methods in document["paths"].items():
        for method, about in methods.items():
            assert re.fullmatch(r"[A-Z].*\.", about["summary"])
            names = [item["name"] for item in about.get("parameters", [])]
            assert names == re.findall(r"\{(\w+)\}", path)
            found = send(
                server, method.upper(), re.sub(r"\{\w+\}", "embedder", path), b"{}" if method == "post" else None
            )
            assert found.status != 405
            assert "no such route" not in found.data.decode()


def test_requests_of_other_tests_are_described(document):
    """Routes that the tests use are in the description, and fields of their requests in the schemas."""
    schemas = document["components"]["schemas"]
    for path, body in REQUESTS.items():
        path = re.sub(r"/v2/models/\w+", "/v2/models/{name}", path)
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        kinds = [schemas[item["$ref"].rpartition("/")[2]] for item in schema.get("anyOf", [schema])]
        assert any(body.keys() <= kind["properties"].keys() for kind in kinds), path


def test_formats_of_fields(document):
    """Messages follow protobuf's JSON mapping: names of enums, base64, limits of numbers."""
    request, reply = (document["components"]["schemas"][name]["properties"] for name in ("EmbedRequest", "EmbedReply"))

    assert request["format"]["enum"][:2] == ["VECTOR_FORMAT_UNSPECIFIED", "VECTOR_FORMAT_FLOAT16"]
    assert request["dimensions"] == {"type": "integer", "minimum": 0, "maximum": 2**32 - 1}
    assert reply["vectors"] == {"type": "string", "contentEncoding": "base64"}
    assert reply["timings"] == {"$ref": "#/components/schemas/Timings"}


@pytest.mark.slow
def test_schemathesis(server, tmp_path):
    """Requests that schemathesis makes from the description, valid and not, get no error of the server."""
    pytest.importorskip("schemathesis", reason="schemathesis is not installed; it is in the group `schemathesis`")
    url, checks = f"http://127.0.0.1:{port_of(server)}/openapi.json", "not_a_server_error,response_schema_conformance"
    command = [sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", checks, "--no-color", "--seed", "1"]
    flags = ["--max-examples", "100", "--exclude-path-regex", "/ready$"]  # 503 is the protocol's word for not ready

    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=1200, cwd=tmp_path)

    assert done.returncode == 0, done.stdout[-8000:]
    assert post(server, "/v1/embed", {"texts": ["the cat"]}).status == 200
    assert json.loads(send(server, "GET", "/health").data) == {"status": "ok"}
