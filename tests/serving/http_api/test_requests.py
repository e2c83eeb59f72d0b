"""Headers, bodies, limits, tokens, deadlines and health, which all routes have in common."""

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bertline.v1 import encoder_pb2 as pb
from serving.core.calls import Call
from serving.http_api.exchange import trace_attributes
from tests.serving.conftest import serve
from tests.serving.http_api.requests import exchange, head_of, post, raw_connection, send

TOKEN = "a-token"
FRIEND = "https://friend.example"
BODY = {"texts": ["the cat"]}


@pytest.fixture(scope="module")
def small(slow_models, tmp_path_factory):
    """Server of a slow model with small limits and a token."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(TOKEN)
    limits = {
        "max_request_bytes": 20_000,
        "receive_s": 1.0,
        "max_concurrent_per_client": 2,
        "max_batch_tokens": 32,
        "max_queue_s": 1000,
    }
    with serve(slow_models, http_port=0, tokens_file=tokens, workers=1, **limits) as running:
        yield running


@pytest.fixture(scope="module")
def named(embedder):
    """Server with a host name, and an origin whose pages may call it."""
    limits = {"http_hosts": ("Known.example",), "http_origins": (FRIEND,)}
    with serve(embedder, http_port=0, **limits) as running:
        yield running


def ask(server, body=BODY, **headers):
    return post(server, "/v1/embed", body, **{"authorization": f"Bearer {TOKEN}", **headers})


def raw(server, data):
    """Send bytes, and return the status line and the rest of what comes until the connection is closed."""
    head, _, rest = exchange(server, data).partition(b"\r\n")
    return head.decode(), rest.decode()


def test_headers_of_requests(server):
    """A caller's request id comes back, or a new one; a reply that the caller does not accept is an error."""
    assert post(server, "/v1/embed", BODY, x_request_id="mine-1").headers["x-request-id"] == "mine-1"
    assert len(post(server, "/v1/embed", BODY, x_request_id="not\tan id").headers["x-request-id"]) == 16
    reply = post(server, "/v1/embed", BODY, max_reply_bytes="10")
    assert (reply.status, reply.error["reason"]) == (413, "MESSAGE_TOO_LARGE")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "the body is empty"),
        (b"{", "not JSON: EOF while parsing an object"),
        (b'{"texts": ["a"], "texts": ["b"]}', 'not JSON: detected duplicate key "texts"'),
        (rb'{"texts": ["a\nb", "\ud83dc"]}', "half of a surrogate pair, which is no character, at line 1 column 27"),
        (b'{"texts": ["\xff"]}', "not JSON"),
        (b"[" * 1000 + b"]" * 1000, "recursion limit"),
        (b"\xef\xbb\xbf{}", "not JSON"),
    ],
)
def test_bodies_that_are_not_json(data, message, server):
    """Each is refused in one line."""
    reply = post(server, "/v1/embed", data)

    assert (reply.status, reply.error["reason"]) == (400, "INVALID_REQUEST")
    assert message in reply.error["message"]
    assert "\n" not in reply.error["message"]


@pytest.mark.parametrize(
    ("media_type", "status"),
    [
        ("application/json", 200),
        ("Application/JSON; charset=utf-8", 200),
        ("application/vnd.api+json", 200),
        ("text/plain", 415),
        ("multipart/form-data; boundary=a", 415),
    ],
)
def test_media_types(media_type, status, server):
    """Only JSON is read: browsers send other types across sites without asking."""
    assert post(server, "/v1/embed", BODY, content_type=media_type).status == status


def test_gzip(small):
    """Compressed bodies are read; the limit holds for what they unpack to."""
    assert ask(small, gzip.compress(json.dumps(BODY).encode()), content_encoding="gzip").status == 200
    bomb = gzip.compress(b'{"texts": ["' + b"a" * 5_000_000 + b'"]}')
    found = [
        ask(small, data, content_encoding=coding)
        for data, coding in (
            (bomb, "gzip"),
            (b"not gzip", "gzip"),
            (gzip.compress(b"{}")[:-4], "gzip"),
            (gzip.compress(b"{}") + b"more", "gzip"),
            (b"{}", "br"),
        )
    ]

    assert [reply.status for reply in found] == [413, 400, 400, 400, 415]
    assert "more than `20000` bytes" in found[0].error["message"]


@pytest.mark.parametrize("framing", ["content-length", "chunked"])
def test_large_bodies(framing, small):
    """A body above the limit is refused before it is read whole, and the connection is closed."""
    fields = f"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
    if framing == "chunked":
        part = b"4e20\r\n" + b"a" * 20_000 + b"\r\n"
        data = f"{fields}transfer-encoding: chunked\r\n\r\n".encode() + part + part
    else:
        data = f"{fields}content-length: 1000000000\r\n\r\n".encode() + b"a" * 100

    head, rest = raw(small, data)

    assert head == "HTTP/1.1 413 Request Entity Too Large"
    assert "connection: close" in rest
    assert "--max-request-bytes" in rest


def test_bodies_that_never_arrive(small):
    """A body that stays away is refused after --receive-s."""
    fields = f"POST /v1/embed HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 30\r\n\r\n"
    start = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda sent: raw(small, fields.encode() + sent), (b"", b'{"texts":')))

    assert [head for head, _ in found] == ["HTTP/1.1 408 Request Timeout"] * 2
    assert all("--receive-s" in rest for _, rest in found)
    assert 0.9 < time.monotonic() - start < 20


def test_bodies_that_lie_about_their_length(server):
    """Bytes beyond the content-length are no request, so the connection ends with 400 after the answer."""
    body = b'{"texts": ["a"]}'
    fields = f"POST /v1/embed HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n\r\n".encode()

    head, rest = raw(server, fields + body + b"more bytes\r\n\r\n")

    assert head == "HTTP/1.1 200 OK"
    assert "HTTP/1.1 400 Bad Request\r\n" in rest
    assert rest.endswith("no HTTP; does the client speak TLS or HTTP/2?\n")


def test_headers_that_never_end(server, monkeypatch):
    """A connection that sends no complete request is closed."""
    monkeypatch.setattr("serving.http_api.connection.HEADERS_S", 0.1)
    for data in (b"", b"GET /health HTTP/1.1\r\nhost"):
        assert raw(server, data)[0] == "HTTP/1.1 408 Request Timeout"


def test_tokens(small):
    """Without the token every route but health is refused."""
    for headers in ({}, {"authorization": "Bearer other"}, {"authorization": "Basic a"}):
        reply = post(small, "/v1/embed", BODY, **headers)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert reply.error["reason"] == "UNAUTHENTICATED"
    assert [send(small, "GET", path).status for path in ("/v1/models", "/metrics", "/none")] == [401] * 3
    assert ask(small).status == 200
    assert ask(small, host="evil.example").status == 200  # a page cannot know the token, so a name needs no check


def test_calls_of_all_fronts_count_together(small):
    """Running gRPC calls of a token leave no room for one over HTTP."""
    request, metadata = pb.EmbedRequest(texts=["the cat " * 15] * 100), [("authorization", f"Bearer {TOKEN}")]
    batches = small.total("bertline_batch_rows_count")
    calls = [small.stub.Embed.future(request, metadata=metadata) for _ in range(2)]
    small.wait_for("bertline_batch_rows_count", batches + 2)

    reply = ask(small)
    for call in calls:
        call.cancel()

    assert (reply.status, reply.error["reason"]) == (429, "TOO_MANY_CALLS")


@pytest.mark.parametrize("sent", ["0", "-1", "1e3", ""])
def test_timeouts_that_are_no_seconds(sent, server):
    """The header is refused by name."""
    reply = post(server, "/v1/embed", BODY, x_request_timeout_s=sent)

    assert reply.status == 400
    assert "x-request-timeout-s" in reply.error["message"]


def test_deadlines(small):
    """A request that cannot be answered in time is refused, or ends when the time is up."""
    start = time.monotonic()
    reply = ask(small, {"texts": ["the cat " * 15] * 40}, x_request_timeout_s="0.2")

    assert reply.status == 504
    assert reply.error["reason"] in ("DEADLINE_TOO_SHORT", "DEADLINE_EXCEEDED")
    assert time.monotonic() - start < 10


def test_a_client_that_hangs_up_cancels_its_work(small):
    """Sequences of a request whose client has gone leave the queue."""
    before = small.total("bertline_cancelled_total")
    body = json.dumps({"texts": ["the cat " * 15] * 100}).encode()
    fields = {"host": "a", "authorization": f"Bearer {TOKEN}", "content-length": len(body)}
    batches = small.total("bertline_batch_rows_count")
    with raw_connection(small) as connection:
        connection.sendall(head_of("/v1/embed", **fields) + body)
        small.wait_for("bertline_batch_rows_count", batches + 1)

    small.wait_for("bertline_cancelled_total", before + 1)
    assert ask(small).status == 200


def test_metrics(server):
    """Requests are counted by route and status, those without a route together."""
    labels = [
        {"http_route": "/v1/embed", "http_status": "200"},
        {"http_route": "/v1/embed", "http_status": "400"},
        {"http_route": "unknown", "http_status": "404"},
    ]
    before = [server.total("http_server_handled_total", **item) for item in labels]
    post(server, "/v1/embed", BODY)
    post(server, "/v1/embed", b"{")
    for number in range(3):
        send(server, "GET", f"/none/{number}")

    after = [server.total("http_server_handled_total", **item) for item in labels]
    assert [new - old for new, old in zip(after, before, strict=True)] == [1, 1, 3]
    assert server.total("http_server_handling_seconds_count", http_route="/v1/embed") >= 2


def test_head_and_options(server):
    """HEAD is GET without a body; OPTIONS names the methods."""
    head, options = send(server, "HEAD", "/v1/models"), send(server, "OPTIONS", "/v1/models")

    assert (head.status, head.data) == (200, b"")
    assert int(head.headers["content-length"]) == len(send(server, "GET", "/v1/models").data)
    assert (options.status, options.headers["allow"]) == (204, "GET, HEAD")


@pytest.mark.parametrize(("status", "number"), [("OK", 200), ("429", 429), ("CANCELLED", None)])
def test_trace_attributes(status, number):
    """Spans have the attributes of OpenTelemetry's conventions for HTTP; those of clients that hung up no status."""
    route = {"http.request.method": "POST", "http.route": "/v1/embed"}
    numbers = {"http.response.status_code": number} if number else {}

    assert trace_attributes(Call("POST /v1/embed", status=status)) == route | numbers


@pytest.fixture(scope="module")
def open_to_all(embedder):
    """Server that pages of all origins may call."""
    with serve(embedder, http_port=0, http_origins=("*",)) as running:
        yield running


@pytest.mark.parametrize(("name", "allowed"), [("server", None), ("named", FRIEND), ("open_to_all", "*")])
def test_pages_of_other_origins(name, allowed, request):
    """A browser lets a page call the server only if its origin is named; the page's request is asked for before."""
    running = request.getfixturevalue(name)
    wanted = {"access_control_request_method": "POST", "access_control_request_headers": "content-type"}
    asked = send(running, "OPTIONS", "/v1/embed", origin=FRIEND, **wanted)
    replies = [post(running, "/v1/embed", BODY, origin=origin) for origin in (FRIEND, "https://b.example")]

    header = "access-control-allow-origin"
    assert asked.headers.get(header) == allowed
    assert [reply.status for reply in replies] == [200 if allowed else 403, 200 if allowed == "*" else 403]
    assert [reply.headers.get(header) for reply in replies] == [allowed, allowed if allowed == "*" else None]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "localhost.evil.example:8080"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": "LOCALHOST:1"}, 200),
        ({"host": "localhost."}, 200),
        ({"host": "models.localhost:8080"}, 200),
        ({"host": "192.0.2.7:8080"}, 200),
        ({"host": "[2001:db8::1]:8080"}, 200),
        ({"host": "known.example:8080"}, 200),
        ({"host": "localhost:1", "origin": "http://localhost:1"}, 200),
        ({"host": "LOCALHOST:80", "origin": "http://localhost"}, 200),
        ({"host": "localhost:1", "origin": "http://localhost:2"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin", "origin": "https://proxied.example"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site", "origin": "http://other.localhost"}, 403),
        ({"sec-fetch-site": "cross-site", "origin": FRIEND}, 200),
    ],
)
def test_what_pages_of_other_sites_send(headers, status, named):
    """Requests under a strange name, and those of pages of other origins, are refused and counted, also without a
    content type."""
    before = named.total("bertline_refused_total", reason="forbidden")
    body = json.dumps(BODY).encode()
    fields = {"host": "localhost", "connection": "close", "content-length": len(body)} | headers
    reply = exchange(named, head_of("/v1/embed", **fields) + body)

    assert int(reply.split(b" ")[1]) == status
    assert status == 200 or b"--http-hosts" in reply or b"--http-origins" in reply
    assert named.total("bertline_refused_total", reason="forbidden") - before == (status == 403)
    assert send(named, "GET", "/health", host="evil.example").status == 200
