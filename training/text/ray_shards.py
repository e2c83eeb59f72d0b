"""Shards made on a Ray cluster whose nodes share a file system."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from training.command_line.progress_bar import ProgressBar
from training.text.documents import Block, checksum
from training.text.ray_pool import map_on_ray
from training.text.shard_maker import ShardStatistics, make_shard

Job = tuple[Path, list[Block], int, str, str | None]
"""Arguments of `make_shard`."""


def make_shards_on_ray(
    jobs: Iterable[Job], directory: Path, *, num_file_bytes: int, num_workers: int, address: str
) -> Iterator[ShardStatistics]:
    """Run `make_shard` for each job, in order. Nodes get ranges of files and read the text themselves.

    Args:
        directory: directory of the shards.
        num_file_bytes: size of the text of all jobs.

    Raises:
        ValueError: as `make_shard`.
        ChildProcessError: if the cluster failed, or a node does not see the directory or the text.
    """
    probe = directory.absolute() / f".{uuid.uuid4().hex}"
    probe.touch()
    node_jobs = []
    # One pass over the text finds where shards begin
    with ProgressBar("cut", unit="byte", total=num_file_bytes, lasting=False) as bar:
        for path, chunk, num_bytes, _, words in jobs:
            job = (probe.with_name(path.name), file_ranges(chunk), num_bytes, str(probe.parent), words)
            node_jobs.append((probe, *job))
            bar.update(num_bytes)
    yield from map_on_ray(make_shard_on_node, node_jobs, num_workers=num_workers, address=address)
    for item in directory.glob(".*"):  # the probe, and partial files of nodes that died
        item.unlink(missing_ok=True)


def file_ranges(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks without their contents; consecutive ones of a file become one."""
    ranges: list[Block] = []
    for block in blocks:
        assert block.content is not None
        last = ranges[-1] if ranges else None
        if last and (last.path, last.start + last.length) == (block.path.absolute(), block.start):
            joined = checksum(block.content, last.checksum)
            ranges[-1] = replace(last, length=last.length + block.length, checksum=joined)
        else:
            found = checksum(block.content)
            ranges.append(replace(block, path=block.path.absolute(), content=None, checksum=found))
    return ranges


def make_shard_on_node(
    probe: Path, path: Path, chunk: list[Block], num_bytes: int, tokenizer_dir: str, words: str | None = None
) -> ShardStatistics:
    """Run `make_shard` on a node of the cluster.

    Args:
        probe: file next to the shards; it exists here if the node shares their directory.

    Raises:
        ValueError: as `make_shard`.
        ChildProcessError: if the node does not share the directory, or has no text or no segmenter.
    """
    if not probe.exists():
        raise ChildProcessError(
            f"node {socket.gethostname()} of the Ray cluster does not share `{probe.parent}` with this machine; "
            "write to a folder that all nodes mount under the same path"
        )
    if missing := [part.path for part in chunk if not part.path.exists()]:
        raise ChildProcessError(f"node {socket.gethostname()} of the Ray cluster has no `{missing[0]}`; share the data")
    return make_shard(path, chunk, num_bytes, tokenizer_dir, words)
