"""Tests of the documentation: links, generated pages, navigation and length of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "clients/README.md"])
CODE = re.compile(r"```.*?```", re.DOTALL)


def anchors(page):
    """Return the anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return {re.sub(r"\s+", "-", text) for text in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_point_to_files_and_headings(page):
    """Each relative link points to an existing file and heading."""
    broken = []
    for link in re.findall(r"\]\((?!http|<)([^)\s]+)\)", CODE.sub("", page.read_text("utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)

    assert broken == []


def test_pages_made_from_the_code_are_up_to_date():
    """The generator would change nothing in docs/reference."""
    command = [sys.executable, "docs/reference/generate.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_every_page_is_in_the_navigation():
    """The site's menu lists every page except experiments and ablations."""
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8").partition("nav:")[2]
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    listed = set(re.findall(r": ([\w/-]+\.md)", navigation))

    assert {page for page in pages - listed if not re.match("experiments|results/", page)} == set()
    assert listed <= pages
    assert yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["strict"]


def test_the_index_of_experiments_is_complete():
    """The index lists each page once."""
    index = (ROOT / "docs/experiments/index.md").read_text("utf-8")
    pages = {page.name for page in (ROOT / "docs/experiments").glob("*.md")} - {"index.md"}

    assert sorted(re.findall(r"\(([\w-]+\.md)\)", index)) == sorted(pages)


def test_the_readme_is_short():
    """The README has at most 130 lines."""
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 130
