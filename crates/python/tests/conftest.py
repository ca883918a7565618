"""What all tests share. Nothing here or in the tests waits without a limit."""

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import farindex
import pytest

KINDS = ["shard", "race", "sephash", "linear", "cuckoo", "sherman", "chime", "dex"]

# Of a process that a test starts, in seconds.
LIMIT = 60


@pytest.fixture
def pool() -> Iterator[farindex.Pool]:
    with farindex.Pool.in_memory("64MiB") as pool:
        yield pool


@pytest.fixture
def index(pool: farindex.Pool) -> farindex.Index:
    return pool.create_index("test")


@pytest.fixture
def tree(pool: farindex.Pool) -> farindex.Index:
    return pool.create_index("tree", "sherman")


@pytest.fixture
def path() -> Iterator[str]:
    """The place of a pool in shared memory."""
    folder = tempfile.mkdtemp(dir="/dev/shm", prefix="farindex-python-")
    yield f"shm:{Path(folder) / 'pool'}"
    shutil.rmtree(folder)


@pytest.fixture
def shared(path: str) -> Iterator[farindex.Pool]:
    """A pool in shared memory with an index "test", whose lease is short enough for a test to wait for it."""
    with farindex.Pool.create(path, node_bytes="64MiB", lease=1) as pool:
        pool.create_index("test")
        yield pool


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a process that runs this code; ends those that still run when the test has ended."""
    running: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # From 3.12 on Python warns of every fork of a process with threads, which these tests do on purpose.
            env={**os.environ, "PYTHONFAULTHANDLER": "1", "PYTHONWARNINGS": "ignore:This process:DeprecationWarning"},
        )
        running.append(process)
        return process

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LIMIT)


@pytest.fixture
def run(start: Callable[..., subprocess.Popen[str]]) -> Callable[..., str]:
    """Runs code in a process of its own, which must end by itself and well; returns what it printed."""

    def run(code: str, *arguments: str) -> str:
        process = start(code, *arguments)
        out, errors = process.communicate(timeout=LIMIT)
        assert process.returncode == 0, f"exit code {process.returncode}: {errors}"
        assert not errors, errors
        return out

    return run
