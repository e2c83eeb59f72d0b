"""Servers in separate processes."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager

import grpc

from bertline.v1 import encoder_pb2_grpc


def command(*arguments):
    return [sys.executable, "-m", "serving", *map(str, arguments)]


@contextmanager
def listening(*arguments, port=0, log=subprocess.PIPE, start=None, **environment):
    """Run a server process until it is ready; yield it, its address and the URL of its metrics.

    Args:
        start: returns the command of a server with some arguments; None for that of the module `serving`.
    """
    ready_fd, write_fd = os.pipe()
    with open(ready_fd) as ready:
        process = subprocess.Popen(
            (start or command)(*arguments, "--port", port, "--metrics-port", 0, "--ready-fd", write_fd),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | environment,
            pass_fds=[write_fd],
        )
        os.close(write_fd)
        try:
            line = ready.readline()
            assert line, process.stderr and process.stderr.read()
            fields = json.loads(line)
            yield process, fields["target"], fields["metrics_url"]
        finally:
            process.kill()
            process.communicate()


@contextmanager
def started(*arguments, **environment):
    """Run a server process; yield it, a stub, and the URL of its metrics."""
    with listening(*arguments, **environment) as (process, target, metrics), grpc.insecure_channel(target) as channel:
        yield process, encoder_pb2_grpc.EncoderStub(channel), metrics
