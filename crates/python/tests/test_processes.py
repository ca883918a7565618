"""Processes on one pool in shared memory: they share what they write, and any of them may be killed."""

import signal
import subprocess
import time
from collections.abc import Callable

import farindex
import pytest

Start = Callable[..., "subprocess.Popen[str]"]

# Writes keys "<round>-<writer>", each with a value that says so, and prints the number of each round that was acknowledged.
WRITER = """
    import os, sys, farindex
    url, writer, how = sys.argv[1], sys.argv[2].encode(), sys.argv[3]
    index = farindex.Pool.open(url).open_index("test")
    round = 0
    while True:
        key, value = b"%d-%s" % (round, writer), b"%s wrote %d" % (writer, round)
        if how == "single":
            index[key] = value
        elif how == "batch":
            index.set_many((b"%s:%d" % (key, part), value) for part in range(20))
        elif how == "counter":
            while not index.replace(b"count", seen := index[b"count"], b"%d" % (int(seen) + 1)):
                pass
        round += 1
        os.write(1, b"%d\\n" % round)
"""


def lines_until(process: "subprocess.Popen[str]", least: int) -> int:
    """Reads lines until one says that so many rounds were acknowledged."""
    assert process.stdout
    acknowledged = 0
    while acknowledged < least:
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        acknowledged = int(line)
    return acknowledged


def kill(process: "subprocess.Popen[str]", acknowledged: int) -> int:
    """Kills a writer with SIGKILL in the middle of its work; returns how many rounds it had acknowledged."""
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    assert process.stdout
    # Not by communicate, which skips what readline has read ahead.
    out = process.stdout.read()
    whole = [int(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
    return whole[-1] if whole else acknowledged


def test_processes_share_what_they_write(shared: farindex.Pool, run: Callable[..., str]) -> None:
    index = shared.open_index("test")
    index[b"from"] = b"parent"
    code = """
        import sys, farindex
        with farindex.Pool.open(sys.argv[1]) as pool:
            index = pool.open_index("test")
            print(index[b"from"].decode())
            index[b"from"] = b"child"
            index.set_many((b"%d" % i, b"") for i in range(500))
    """
    assert run(code, shared.url) == "parent\n"
    assert index[b"from"] == b"child" and len(index) == 501 and shared.client_count() == 1


@pytest.mark.parametrize("how", ["single", "batch"])
def test_a_writer_is_killed_and_the_other_continues(shared: farindex.Pool, start: Start, how: str) -> None:
    """Everything that either of them has acknowledged is there, and the survivor sees no error."""
    index = shared.open_index("test")
    survivor = start(WRITER, shared.url, "survivor", how)
    lines_until(survivor, 5)
    killed: list[tuple[bytes, int]] = []
    for name in ("first", "second", "third"):
        victim = start(WRITER, shared.url, name, how)
        killed.append((name.encode(), kill(victim, lines_until(victim, 20))))
        lines_until(survivor, 5)
    assert survivor.poll() is None
    # The survivor takes over what the killed ones held; this process, a third client, reads meanwhile.
    killed.append((b"survivor", kill(survivor, lines_until(survivor, 100))))
    for name, acknowledged in killed:
        keys = [b"%d-%s" % (round, name) for round in range(acknowledged)]
        wrote = [b"%s wrote %d" % (name, round) for round in range(acknowledged)]
        if how == "single":
            assert index.get_many(keys) == wrote
        else:
            for part in range(20):
                assert index.get_many([b"%s:%d" % (key, part) for key in keys]) == wrote
    # And every key can be written.
    deadline = time.monotonic() + 30
    for name, acknowledged in killed:
        for round in range(acknowledged):
            index[b"%d-%s" % (round, name)] = b"over"
    assert time.monotonic() < deadline, "nobody waits longer than a few leases"
    shared.repair()
    assert shared.client_count() == 1


def test_a_counter_loses_and_doubles_nothing_when_processes_are_killed(shared: farindex.Pool, start: Start) -> None:
    """A killed process may have counted once more than it has acknowledged, and nothing else."""
    index = shared.open_index("test")
    index[b"count"] = b"0"
    acknowledged = 0
    for turn in range(3):
        writers = [start(WRITER, shared.url, f"{turn}-{i}", "counter") for i in range(2)]
        seen = [lines_until(writer, 20) for writer in writers]
        acknowledged += sum(kill(writer, least) for writer, least in zip(writers, seen, strict=True))
    counted = int(index[b"count"])
    assert acknowledged <= counted <= acknowledged + 6


def test_a_stopped_process_loses_its_lease_and_is_told(path: str, start: Start) -> None:
    """One that is stopped for longer than a lease, while another needs what it holds or the slot, may go on or gets LeaseLost."""
    with farindex.Pool.create(path, node_bytes="64MiB", lease=0.5) as pool:
        index = pool.create_index("test")
        code = """
            import sys, farindex
            pool = farindex.Pool.open(sys.argv[1])
            index = pool.open_index("test")
            index[b"a"] = b"1"
            print("ready", flush=True)
            sys.stdin.readline()
            try:
                index[b"a"] = b"2"
                print("went on")
            except farindex.LeaseLost as error:
                assert "open the pool again" in str(error)
                pool.close()
                farindex.Pool.open(sys.argv[1]).open_index("test")[b"a"] = b"3"
                print("told")
        """
        process = start(code, path)
        assert process.stdout and process.stdin
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.7)
        try:
            pool.repair()
        finally:
            process.send_signal(signal.SIGCONT)
        out, errors = process.communicate("\n", timeout=30)
        assert process.returncode == 0, errors
        assert (out, index[b"a"]) in (("went on\n", b"2"), ("told\n", b"3"))
