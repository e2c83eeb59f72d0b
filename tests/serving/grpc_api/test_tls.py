import asyncio
import gc
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from contextlib import suppress

import grpc
import pytest

from bertline.v1 import encoder_pb2 as pb
from bertline.v1 import encoder_pb2_grpc
from serving.core import credentials
from serving.core.credentials import TlsFiles
from serving.grpc_api.listening import Certificates
from tests.serving.attacks import say_nothing
from tests.serving.conftest import serve
from tests.serving.processes import listening
from tests.serving.reliability import errors_of, wait_until

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EMBEDDER = pb.ModelRef(name="embedder")


@pytest.fixture(scope="module")
def certificate(authority):
    return authority.sign("server")


@pytest.fixture(scope="module")
def tls(embedder, certificate):
    """Server with TLS."""
    with serve(embedder, tls_cert=certificate.path, tls_key=certificate.key) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(embedder, certificate, authority):
    """Server with mutual TLS."""
    files = {"tls_cert": certificate.path, "tls_key": certificate.key, "tls_client_ca": authority.path}
    with serve(embedder, **files) as running:
        yield running


def code(server, channel_credentials):
    """Return the status of a call over a new connection."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(server.target, channel_credentials, options=options) as channel:
        return encoder_pb2_grpc.EncoderStub(channel).Embed.future(pb.EmbedRequest(texts=["cat"]), timeout=5).code()


def test_tls(tls, authority, stranger):
    """Clients that trust the server's authority are answered; others, and clients without TLS, are not."""
    assert code(tls, authority.trusted()) is grpc.StatusCode.OK
    assert code(tls, stranger.trusted()) is UNAVAILABLE
    assert tls.stub.Embed.future(pb.EmbedRequest(texts=["cat"]), timeout=5).code() is UNAVAILABLE


def test_client_certificates(mutual, authority, stranger):
    """Mutual TLS answers clients with a valid certificate of the authority only."""
    assert code(mutual, authority.sign("client").credentials(authority)) is grpc.StatusCode.OK
    assert code(mutual, authority.trusted()) is UNAVAILABLE
    assert code(mutual, authority.sign("expired", days=-1).credentials(authority)) is UNAVAILABLE
    assert code(mutual, stranger.sign("client").credentials(authority)) is UNAVAILABLE


@pytest.fixture
def watchful(monkeypatch):
    """Files are checked often, and renewed certificates used soon."""
    monkeypatch.setattr(credentials, "CHECK_S", 0.02)
    monkeypatch.setattr("serving.grpc_api.listening.HOLD_S", 0.1)


@pytest.fixture
def installed(authority, tmp_path):
    """Files of a server, and a function that replaces them."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(certificate):
        for new, path in ((certificate.path, cert), (certificate.key, key)):
            made = path.with_suffix(".new")
            made.write_bytes(new.read_bytes())
            made.replace(path)

    install(authority.sign("first"))
    return {"tls_cert": cert, "tls_key": key}, install


def test_renewal(embedder, authority, stranger, installed, watchful, caplog):
    """New certificates are used without a restart; broken ones are logged once, and the old ones stay in use."""
    caplog.set_level(logging.INFO)
    files, install = installed
    with serve(embedder, **files) as running:
        install(stranger.sign("second"))
        wait_until(
            lambda: code(running, stranger.trusted()) is grpc.StatusCode.OK, "the old ones are still in use", limit_s=10
        )
        assert code(running, authority.trusted()) is UNAVAILABLE
        caplog.clear()  # the server may have looked between the two files
        files["tls_cert"].write_text("broken")
        wait_until(lambda: errors_of(caplog), "no error", limit_s=5)
        assert code(running, stranger.trusted()) is grpc.StatusCode.OK

    [error] = errors_of(caplog)

    assert str(files["tls_cert"]) in error


def test_no_connection_outlives_the_watch(authority, installed, monkeypatch):
    """Renewal may end at any moment, also while it connects to the server: no socket stays open."""
    monkeypatch.setattr(credentials, "CHECK_S", 0)
    files, install = installed

    async def watch(seconds):
        certificates = Certificates(TlsFiles(files["tls_cert"], files["tls_key"]))
        install(authority.sign("server"))
        task = asyncio.create_task(certificates.watch("127.0.0.1", listener.getsockname()[1]))
        await asyncio.sleep(seconds)
        task.cancel()
        await asyncio.wait([task])

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        for number in range(40):
            asyncio.run(watch(number / 10_000))
    gc.collect()  # pytest fails at a socket that was never closed


def test_calls_while_certificates_are_renewed(embedder, authority, installed, watchful):
    """No call fails during a renewal, and new connections get the last certificate."""
    files, install = installed
    codes, done = [], threading.Event()
    with serve(embedder, **files) as running:

        def call_often(*, keeps):
            options = [("grpc.use_local_subchannel_pool", 1)]
            with grpc.secure_channel(running.target, authority.trusted(), options=options) as channel:
                while not done.is_set():
                    stub = encoder_pb2_grpc.EncoderStub(channel)
                    call = stub.Embed.future(pb.EmbedRequest(texts=["cat"], model=EMBEDDER), timeout=10)
                    codes.append(call.code() if keeps else code(running, authority.trusted()))

        threads = [threading.Thread(target=call_often, kwargs={"keeps": keeps}) for keeps in (True, True, False, False)]
        for thread in threads:
            thread.start()
        for number in range(4):
            certificate = authority.sign(f"renewed-{number}")
            install(certificate)
            wait_until(lambda: shown(running) == pem(certificate), "the old one is still in use", limit_s=10)  # noqa: B023
        done.set()
        for thread in threads:
            thread.join()

    assert len(codes) > 100
    assert set(codes) == {grpc.StatusCode.OK}


def shown(running):
    """Return the certificate that a new connection gets, in PEM."""
    host, port = running.target.rsplit(":", 1)
    return ssl.get_server_certificate((host, int(port)), timeout=5).strip()


def pem(certificate):
    return certificate.path.read_text().strip()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a core is given on Linux")
def test_masses_of_connections_beside_a_busy_neighbour(embedder, authority, installed):
    """Many handshakes and silent connections on one busy core do not crash a server that renews certificates."""
    files, install = installed
    core = min(os.sched_getaffinity(0))
    flags = [item for name, path in files.items() for item in (f"--{name.replace('_', '-')}", path)]
    neighbour = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{core}])\nwhile 1: pass"])
    try:
        with listening(embedder, *flags, log=subprocess.DEVNULL, PYTHONFAULTHANDLER="1") as (process, target, _):
            os.sched_setaffinity(process.pid, [core])
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                os.sched_setaffinity(int(thread), [core])
            for number in range(3):
                install(authority.sign(f"soak-{number}"))
                shake_hands(target, authority, seconds=6)
                assert process.poll() is None
            with grpc.secure_channel(target, authority.trusted()) as channel:
                stub = encoder_pb2_grpc.EncoderStub(channel)
                assert stub.Embed(pb.EmbedRequest(texts=["cat"], model=EMBEDDER), timeout=20).num_tokens == [3]
    finally:
        neighbour.kill()
        neighbour.wait()


def shake_hands(target, authority, seconds):
    """Connect as often as possible, with TLS and without any data."""
    host, port = target.rsplit(":", 1)
    context, end = ssl.create_default_context(cafile=authority.path), time.monotonic() + seconds

    def shake():
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection((host, int(port)), 2) as connection:
                context.wrap_socket(connection, server_hostname=host).close()

    threads = [threading.Thread(target=shake) for _ in range(6)]
    for thread in threads:
        thread.start()
    while time.monotonic() < end:
        say_nothing(target, 300, 0.3)
    for thread in threads:
        thread.join()


def test_bad_files(certificate, authority, stranger, tmp_path):
    """Unusable files are a one-line error that names them."""
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    chain = tmp_path / "chain.pem"
    chain.write_text(certificate.path.read_text() + broken.read_text())
    rsa, weak = authority.sign("rsa", rsa_bits=2048), authority.sign("weak", rsa_bits=1024)
    for files, named in [
        (TlsFiles(broken, certificate.key), f"the certificate `{broken}`"),
        (TlsFiles(chain, certificate.key), "one of them is not a PEM file"),
        (TlsFiles(certificate.path, broken), broken),
        (TlsFiles(certificate.path, stranger.sign("server").key), "do not match"),
        (TlsFiles(certificate.path, rsa.key), "do not match"),
        (TlsFiles(weak.path, weak.key), "OpenSSL refuses them: ee key too small"),
        (TlsFiles(certificate.path, certificate.key, broken), broken),
        (TlsFiles(certificate.path, tmp_path / "none.pem"), "none.pem"),
    ]:
        with pytest.raises((ValueError, OSError)) as caught:
            Certificates(files)
        assert str(named) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_plain_text_warning(embedder, caplog):
    """Listening without TLS on addresses other than loopback logs one warning."""
    for host in ("127.0.0.1", "localhost", "0.0.0.0"):
        with serve(embedder, load=False, host=host):
            pass

    warnings = [record.getMessage() for record in caplog.records]

    assert len(warnings) == 1
    assert "`0.0.0.0` without TLS" in warnings[0]
