"""TLS of the HTTP port."""

import http.client
import json
import shutil
import ssl

import pytest

from tests.serving.conftest import serve
from tests.serving.http_api.requests import port_of, send
from tests.serving.reliability import wait_until


def health(server, authority, certificate=None):
    """Ask for the health over TLS; return the status and the subject of the server's certificate."""
    context = ssl.create_default_context(cafile=authority.path)
    if certificate:
        context.load_cert_chain(certificate.path, certificate.key)
    connection = http.client.HTTPSConnection("127.0.0.1", port_of(server), context=context, timeout=30)
    try:
        connection.request("GET", "/health")
        subject = dict(item for pair in connection.sock.getpeercert()["subject"] for item in pair)
        return connection.getresponse().status, subject["commonName"]
    finally:
        connection.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Look at the files often."""
    monkeypatch.setattr("serving.core.credentials.CHECK_S", 0.1)


def test_one_certificate_after_another(embedder, authority, stranger, tmp_path):
    """Clients that trust the certificate are answered; a renewed one is used without a restart.

    A connection answers one request after another, replies of megabytes arrive whole, and plain text is refused.
    """
    first, second = authority.sign("first"), authority.sign("second")
    files = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    body = json.dumps({"inputs": "the cat " * 10_000}).encode()

    def use(certificate):
        for name, source in (("tls_cert", certificate.path), ("tls_key", certificate.key)):
            shutil.copy(source, files[name])

    use(first)
    with serve(embedder, http_port=0, **files) as running:
        assert running.server.ready().http_url == f"https://127.0.0.1:{port_of(running)}"
        assert health(running, authority) == (200, "first")
        with pytest.raises(ssl.SSLError):
            health(running, stranger)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            send(running, "GET", "/health")
        context = ssl.create_default_context(cafile=authority.path)
        connection = http.client.HTTPSConnection("127.0.0.1", port_of(running), context=context, timeout=30)
        for _ in range(2):
            connection.request("POST", "/tei/embedder/tokenize", body)
            assert len(json.loads(connection.getresponse().read())[0]) == 20_002
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
        connection.close()
        use(second)
        wait_until(lambda: health(running, authority)[1] == "second", "the old certificate stays in use")


def test_renewed_authorities(embedder, authority, stranger, tmp_path):
    """With mutual TLS, clients of the authority are answered; those of withdrawn ones are refused without a restart."""
    server, client, other = authority.sign("server"), authority.sign("client"), stranger.sign("client")
    trusted = tmp_path / "authorities.pem"
    shutil.copy(authority.path, trusted)
    files = {"tls_cert": server.path, "tls_key": server.key, "tls_client_ca": trusted}
    refused = (ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)

    def is_answered(certificate=None):
        try:
            return health(running, authority, certificate)[0] == 200
        except refused:
            return False

    with serve(embedder, http_port=0, **files) as running:
        assert is_answered(client)
        assert not is_answered()
        assert not is_answered(other)
        shutil.copy(stranger.path, trusted)
        wait_until(lambda: is_answered(other), "renewed authorities are not in use")

        assert not is_answered(client)
