"""Servers in processes of their own, as users start them."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import grpc

from bertline.v1 import encoder_pb2_grpc

READY = re.compile(r"serving (\d+) models? on (\S+), metrics on http://(\S+)/metrics\n")


def command(*arguments):
    return [sys.executable, "-m", "serving", *map(str, arguments)]


@contextmanager
def listening(*arguments, port=0, log=subprocess.PIPE, **environment):
    """A server process that is ready, its address, and that of its metrics."""
    process = subprocess.Popen(
        command(*arguments, "--port", port, "--metrics-port", 0),
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=os.environ | environment,
    )
    try:
        ready = READY.fullmatch(process.stdout.readline())
        assert ready, process.stderr and process.stderr.read()
        yield process, ready[2], f"http://{ready[3]}/metrics"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def started(*arguments, **environment):
    """The same with a stub instead of the address."""
    with listening(*arguments, **environment) as (process, target, metrics), grpc.insecure_channel(target) as channel:
        yield process, encoder_pb2_grpc.EncoderStub(channel), metrics
