from __future__ import annotations

import asyncio

import pytest

from bertline import AsyncClient, Client
from bertline.errors import ConnectionFailed, Unauthenticated
from bertline.testing import FakeServer
from tests.clients.command import fails
from tests.serving.certificates import make_authority
from tests.serving.conftest import serve
from tests.serving.models import write_model

TOKEN = "secret-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("access") / "authority")


@pytest.fixture(scope="module")
def target(authority, tmp_path_factory):
    """Start a server that requires a token and speaks TLS."""
    models = tmp_path_factory.mktemp("models")
    write_model(models, "embedder")
    tokens = tmp_path_factory.mktemp("access") / "tokens"
    tokens.write_text(TOKEN)
    certificate = authority.sign("server")
    files = {"tls_cert": certificate.path, "tls_key": certificate.key, "tls_client_ca": authority.path}
    with serve(models, tokens_file=tokens, **files) as running:
        yield running.target


@pytest.fixture(scope="module")
def mine(authority):
    return authority.sign("client")


def test_client(target, authority, mine):
    """The server accepts a client with credentials and token, and errors name the missing one."""
    credentials = mine.credentials(authority)
    with Client(target, credentials=credentials, token=TOKEN) as client:
        assert client.embed(["cat"] * 100, model="embedder").shape == (100, 8)
    with (
        Client(target, credentials=credentials) as client,
        pytest.raises(Unauthenticated, match="the call has no token"),
    ):
        client.models()
    with Client(target, token=TOKEN) as client, pytest.raises(ConnectionFailed, match="speaks TLS, give `credentials`"):
        client.models()


def test_untrusted_server(target, authority, mine, tmp_path):
    """The error states that the certificate is not trusted, not that no server runs."""
    stranger = make_authority(tmp_path / "stranger")
    with (
        Client(target, credentials=mine.credentials(stranger), token=TOKEN) as client,
        pytest.raises(ConnectionFailed, match="trust the signer of its certificate"),
    ):
        client.models()


def test_server_without_tls(authority, mine):
    """The error states that the server does not speak TLS."""
    credentials = mine.credentials(authority)
    with (
        FakeServer() as plain,
        Client(plain.target, credentials=credentials) as client,
        pytest.raises(ConnectionFailed, match="check that a server runs there and speaks TLS"),
    ):
        client.models()


def test_async_client(target, authority, mine):
    """AsyncClient takes the same credentials and token."""

    async def ask():
        async with AsyncClient(target, credentials=mine.credentials(authority), token=TOKEN) as client:
            return await client.embed(["cat"], model="embedder")

    assert asyncio.run(ask()).shape == (1, 8)


def test_bad_token():
    """An invalid token is refused before the first call, and no error or repr contains a token."""
    with pytest.raises(ValueError, match="`token` must be") as caught:
        Client("127.0.0.1:1", token="two words")

    assert "two" not in str(caught.value)
    with Client("127.0.0.1:1", token=TOKEN) as client:
        assert TOKEN not in repr(client._connection)


def test_command(run, authority, mine, monkeypatch):
    """The command reads the token from the environment, and certificates from flags before the subcommand."""
    tls = ("--tls-ca", authority.path, "--tls-cert", mine.path, "--tls-key", mine.key)
    refused = run(*map(str, tls), "models")

    assert (refused.code, "the call has no token" in refused.err) == (1, True)

    monkeypatch.setenv("BERTLINE_TOKEN", TOKEN)
    answered = run(*map(str, tls), "embed", "--model", "embedder", "cat")
    assert (answered.code, answered.out.count("vector")) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (("--tls-cert", "a.pem", "models"), "need each other", 2),
        (("--tls-cert", "a.pem", "--tls-key", "a.key", "models"), "--tls-cert needs --tls-ca", 2),
        (("--tls-ca", "none.pem", "models"), "none.pem", 1),
        (("--tls-ca", "a.pem", "--tls-cert", "", "--tls-key", "", "models"), "--tls-cert is empty", 2),
        (("--token", "two words", "models"), "`token` must be", 2),
    ],
)
def test_bad_flags(run, arguments, message, code):
    """A wrong flag is an error of one line."""
    assert fails(run(*arguments), message, code)
