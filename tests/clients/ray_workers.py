"""Worker on the nodes of a cluster, and its driver."""

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

from bertline.jobs.ray_pool import RayFailed, map_partitions


def make_worker(folder):
    if folder == "nowhere":
        raise FileNotFoundError(f"no such folder: {folder}")
    (Path(folder) / f"worker-{os.getpid()}").touch()
    return partial(work, folder)


def work(folder, partition):
    time.sleep(0.5)
    if partition == "killer":
        os.kill(os.getpid(), signal.SIGKILL)
    if partition == "mistake":
        raise KeyError("no such column")
    (Path(folder) / f"part-{partition}").write_text(str(partition**2))
    return partition**2


def main():
    address, folder, partitions = sys.argv[1:]
    try:
        map_partitions(
            json.loads(partitions),
            partial(make_worker, folder),
            address=address,
            num_workers=2,
            progress=lambda *done: print(json.dumps(done), file=sys.__stdout__, flush=True),
        )
    except (RayFailed, KeyError, OSError) as error:
        print(json.dumps([type(error).__name__, str(error)]))


if __name__ == "__main__":
    main()
