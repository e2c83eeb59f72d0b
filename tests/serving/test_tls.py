import logging

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving import watched
from serving.tls import TlsFiles, credentials
from tests.serving.certificates import make_authority
from tests.serving.conftest import serve

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """An authority that nobody trusts."""
    return make_authority(tmp_path_factory.mktemp("tls") / "other")


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def tls(all_tasks, certificate):
    """A server with TLS."""
    with serve(all_tasks[0], tls_cert=certificate.path, tls_key=certificate.key) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(all_tasks, certificate, authority):
    """A server that asks clients for certificates."""
    files = {"tls_cert": certificate.path, "tls_key": certificate.key, "tls_client_ca": authority.path}
    with serve(all_tasks[0], **files) as running:
        yield running


def code(server, channel_credentials):
    """Status of a call over a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(server.target, channel_credentials, options=options) as channel:
        return encoder_pb2_grpc.EncoderStub(channel).Embed.future(pb.EmbedRequest(texts=["cat"]), timeout=5).code()


def test_trusted(tls, authority):
    """A client that trusts the server's authority is answered."""
    assert code(tls, authority.trusted()) is grpc.StatusCode.OK


def test_untrusted(tls, stranger):
    """A client that trusts another authority does not connect."""
    assert code(tls, stranger.trusted()) is UNAVAILABLE


def test_plain_text(tls):
    """Nobody is answered without TLS."""
    assert tls.stub.Embed.future(pb.EmbedRequest(texts=["cat"]), timeout=5).code() is UNAVAILABLE


def test_client_certificate(mutual, authority):
    """With mutual TLS, a client with a certificate of the authority is answered."""
    assert code(mutual, authority.sign("client").credentials(authority)) is grpc.StatusCode.OK


def test_bad_client_certificates(mutual, authority, stranger):
    """A client without a certificate, with an expired one, or with one of another authority is not."""
    assert code(mutual, authority.trusted()) is UNAVAILABLE
    assert code(mutual, authority.sign("expired", days=-1).credentials(authority)) is UNAVAILABLE
    assert code(mutual, stranger.sign("client").credentials(authority)) is UNAVAILABLE


@pytest.fixture
def watchful(monkeypatch):
    """Files are looked at each time."""
    monkeypatch.setattr(watched, "CHECK_S", 0)


def test_renewal(all_tasks, authority, stranger, tmp_path, watchful, caplog):
    """New certificates are used without a restart; broken ones are one line in the log, and the old ones stay."""
    caplog.set_level(logging.INFO)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(certificate):
        for new, path in ((certificate.path, cert), (certificate.key, key)):
            path.write_bytes(new.read_bytes())

    install(authority.sign("first"))
    with serve(all_tasks[0], tls_cert=cert, tls_key=key) as running:
        install(stranger.sign("second"))
        assert code(running, authority.trusted()) is UNAVAILABLE
        assert code(running, stranger.trusted()) is grpc.StatusCode.OK
        cert.write_text("broken")
        assert code(running, stranger.trusted()) is grpc.StatusCode.OK

    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1
    assert str(cert) in errors[0]


def test_bad_files(certificate, authority, stranger, tmp_path):
    """Files that are no use are one line that names them."""
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    chain = tmp_path / "chain.pem"
    chain.write_text(certificate.path.read_text() + broken.read_text())
    rsa, weak = authority.sign("rsa", rsa_bits=2048), authority.sign("weak", rsa_bits=1024)
    for files, named in [
        (TlsFiles(broken, certificate.key), f"the certificate `{broken}`"),
        (TlsFiles(broken, certificate.key), "one of them is not PEM"),
        (TlsFiles(chain, certificate.key), "one of them is not PEM"),
        (TlsFiles(certificate.path, broken), broken),
        (TlsFiles(certificate.path, stranger.sign("server").key), "belong together"),
        (TlsFiles(certificate.path, rsa.key), "belong together"),
        (TlsFiles(rsa.path, certificate.key), "belong together"),
        (TlsFiles(weak.path, weak.key), "OpenSSL refuses them, ee key too small"),
        (TlsFiles(certificate.path, certificate.key, broken), broken),
        (TlsFiles(certificate.path, tmp_path / "none.pem"), "none.pem"),
    ]:
        with pytest.raises((ValueError, OSError)) as caught:
            credentials(files)
        assert str(named) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_plain_text_warning(all_tasks, caplog):
    """Listening on other than local addresses without TLS is one warning; on local ones it is none."""
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        with serve(all_tasks[0], load=False, host=host):
            pass

    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    assert "0.0.0.0 without TLS" in warnings[0]
