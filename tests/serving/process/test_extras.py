import pytest

from serving.process import extras
from serving.process.extras import missing_package


@pytest.mark.parametrize(
    ("distribution", "command"),
    [
        (None, "python -m pip install --group http -c constraints.txt"),
        ("bertline-server", "python -m pip install 'dist/bertline_server-0.1-py3-none-any.whl[http]'"),
        ("bertline-server-gpu", "python -m pip install 'dist/bertline_server_gpu-0.1-py3-none-any.whl[http]'"),
    ],
)
def test_the_command_fits_the_installation(monkeypatch, distribution, command):
    """The error has the command for a checkout, or for the installed wheel: its file, since PyPI may have its name."""
    installed = {"bertline_server": [distribution]} if distribution else {}
    monkeypatch.setattr(extras, "packages_distributions", lambda: installed)
    monkeypatch.setattr(extras, "version", lambda name: "0.1")

    assert str(missing_package("--a-flag", "a_package", "http")) == (
        f"--a-flag needs the package `a_package`: run `{command}`"
    )
