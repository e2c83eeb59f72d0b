"""Errors about libraries that only some flags need."""

from __future__ import annotations

from importlib.metadata import packages_distributions, version


def missing_package(purpose: str, package: str | None, extra: str) -> ValueError:
    """Return the error of a flag whose libraries are not installed.

    Args:
        purpose: what needs them, such as a flag.
        package: the missing one.
        extra: extra of the server's wheel, or dependency group in a checkout, that has them.
    """
    return ValueError(f"{purpose} needs the package `{package}`: run `{_install_command(extra)}`")


def _install_command(extra: str) -> str:
    """Return the command that installs an extra. pip looks for the name of a distribution on PyPI, hence the file."""
    names = packages_distributions().get("bertline_server")
    if not names:
        return f"python -m pip install --group {extra} -c constraints.txt"
    wheel = f"{names[0].replace('-', '_')}-{version(names[0])}-py3-none-any.whl"
    return f"python -m pip install 'dist/{wheel}[{extra}]'"
