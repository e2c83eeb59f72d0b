"""Shards made on the nodes of a Ray cluster, which share a file system."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.progress_bar import ProgressBar
from training.text.documents import Block
from training.text.file_ranges import Place, places_of
from training.text.ray_pool import map_on_ray
from training.text.shard_maker import ShardSummary, make_shard

Job = tuple[Path, list[Block], int, str, str | None]
"""What `make_shard` takes."""


def make_shards_on_ray(
    jobs: Iterable[Job], directory: Path, *, num_file_bytes: int, num_workers: int, address: str
) -> Iterator[ShardSummary]:
    """As `make_shard` of each job, in order; not the text is sent, but where it stands.

    Args:
        directory: where the shards go.
        num_file_bytes: of all jobs.

    Raises:
        ValueError: as `make_shard` does.
        ChildProcessError: when the cluster failed, or a node does not see the directory or the text.
    """
    mark = directory.absolute() / f".{uuid.uuid4().hex}"
    mark.touch()
    placed = list(_placed(jobs, mark, num_file_bytes))
    yield from map_on_ray(make_shard_here, placed, num_workers=num_workers, address=address)
    for item in directory.glob(".*"):  # the mark, and what was half-written on a node that died
        item.unlink(missing_ok=True)


def _placed(
    jobs: Iterable[Job], mark: Path, num_file_bytes: int
) -> Iterator[tuple[Path, Path, list[Place], int, str, str | None]]:
    """Read all text once, to know where shards begin."""
    with ProgressBar("cut", unit="byte", total=num_file_bytes, lasting=False) as bar:
        for path, chunk, num_bytes, _, words in jobs:
            yield mark, mark.with_name(path.name), places_of(chunk), num_bytes, str(mark.parent), words
            bar.update(num_bytes)


def make_shard_here(
    mark: Path, path: Path, chunk: list[Place], num_bytes: int, tokenizer_dir: str, words: str | None = None
) -> ShardSummary:
    """As `make_shard`, on a node.

    Args:
        mark: a file beside the shards, which is seen where their folder is shared.

    Raises:
        ValueError: as `make_shard` does.
        ChildProcessError: when this node sees another folder, or has not the text or the segmenter.
    """
    if not mark.exists():
        raise ChildProcessError(
            f"node {socket.gethostname()} of the Ray cluster does not share `{mark.parent}` with this machine; "
            "write to a folder that all nodes mount under the same path"
        )
    if absent := [place.path for place in chunk if not place.path.exists()]:
        raise ChildProcessError(f"node {socket.gethostname()} of the Ray cluster has no `{absent[0]}`; share the data")
    return make_shard(path, chunk, num_bytes, tokenizer_dir, words)
