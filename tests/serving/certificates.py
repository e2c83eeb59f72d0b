"""Certificates, made by openssl's command."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in files."""

    path: Path
    key: Path

    def credentials(self, authority):
        """Of a client that shows this certificate."""
        return grpc.ssl_channel_credentials(authority.path.read_bytes(), self.key.read_bytes(), self.path.read_bytes())


class Authority(Certificate):
    """Signs certificates; `credentials()` are those of a client that trusts it."""

    def sign(self, name, *, days=2, rsa_bits=None):
        """Make a certificate of 127.0.0.1; one of `days` below 0 has expired; with an RSA key where it has bits."""
        made = Certificate(self.path.with_name(f"{name}.pem"), self.path.with_name(f"{name}.key"))
        request, extensions = self.path.with_name(f"{name}.csr"), self.path.with_name(f"{name}.ext")
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        kind = ("-newkey", f"rsa:{rsa_bits}", "-nodes") if rsa_bits else EC
        openssl("req", *kind, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.path, "-CAkey", self.key, "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-days", days, "-extfile", extensions, "-out", made.path)
        return made

    def trusted(self):
        """Credentials of a client that trusts this authority and shows no certificate."""
        return grpc.ssl_channel_credentials(self.path.read_bytes())


EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(directory):
    """A new authority, in a directory that is made."""
    directory.mkdir()
    made = Authority(directory / "ca.pem", directory / "ca.key")
    openssl("req", "-x509", *EC, "-keyout", made.key, "-out", made.path, "-days", 2, "-subj", "/CN=authority")
    return made


def openssl(*arguments):
    """Run openssl, or skip the test where there is none."""
    if not shutil.which("openssl"):
        pytest.skip("openssl's command makes the certificates")
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
