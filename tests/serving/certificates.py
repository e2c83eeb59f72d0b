"""Certificates made with the command openssl."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate and its key."""

    path: Path
    key: Path

    def credentials(self, authority):
        """Return the credentials of a client with this certificate."""
        return grpc.ssl_channel_credentials(authority.path.read_bytes(), self.key.read_bytes(), self.path.read_bytes())


class Authority(Certificate):
    """Certificate authority; `credentials()` are those of a client that trusts it."""

    def sign(self, name, *, days=2, rsa_bits=None):
        """Make a certificate for 127.0.0.1; expired if `days` is negative, with an RSA key if `rsa_bits` is set."""
        made = Certificate(self.path.with_name(f"{name}.pem"), self.path.with_name(f"{name}.key"))
        request, extensions = self.path.with_name(f"{name}.csr"), self.path.with_name(f"{name}.ext")
        extensions.write_text("subjectAltName=IP:127.0.0.1\n")
        kind = ("-newkey", f"rsa:{rsa_bits}", "-nodes") if rsa_bits else EC
        openssl("req", *kind, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        signer = ("-CA", self.path, "-CAkey", self.key, "-CAcreateserial")
        openssl("x509", "-req", "-in", request, *signer, "-days", days, "-extfile", extensions, "-out", made.path)
        return made

    def trusted(self):
        """Return the credentials of a client that trusts this authority and has no certificate."""
        return grpc.ssl_channel_credentials(self.path.read_bytes())


EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(directory):
    """Make an authority in a new directory."""
    directory.mkdir()
    made = Authority(directory / "ca.pem", directory / "ca.key")
    openssl("req", "-x509", *EC, "-keyout", made.key, "-out", made.path, "-days", 2, "-subj", "/CN=authority")
    return made


def openssl(*arguments):
    """Run openssl, or skip the test if it is not installed."""
    if not shutil.which("openssl"):
        pytest.skip("openssl's command makes the certificates")
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
