"""Compares the package with a Python dict and redis-py.

    scripts/python --release && target/python/bin/pip install redis
    target/python/bin/python crates/python/examples/benchmark.py [--redis PORT] [--rounds 5]

Starts a redis-server of its own on 127.0.0.1 (with persistence off) unless given the port of a server that speaks its protocol.
Each figure is the median of the rounds; in each round every way has its turn, so that what disturbs the machine disturbs all.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import farindex

BLOCKS = 1000
KEYS, VALUE = 1000, 4096


def seconds_of(body: Callable[[], object], least: float = 0.3) -> float:
    """Seconds of one call, over as many calls as fit into the time."""
    calls, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < least:
        body()
        calls += 1
    return took / calls


class Table:
    """Measurements of several ways to do the same."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def measure(self, title: str, unit: str, per_call: int, ways: dict[str, Callable[[], object]], base: str) -> None:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(self.rounds):
            for name, way in ways.items():
                times[name].append(seconds_of(way))
        rates = {name: per_call / statistics.median(all) for name, all in times.items()}
        print(f"\n{title}")
        for name, rate in rates.items():
            spread = max(times[name]) / min(times[name])
            print(f"  {name:44} {rate:12,.0f} {unit}   {rate / rates[base]:6.2f}   (spread {spread:.2f})")


@contextlib.contextmanager
def redis_port(given: int | None) -> Iterator[int | None]:
    if given is not None:
        yield given
        return
    server = shutil.which("redis-server")
    if server is None:
        print("redis-server is not installed: without it", file=sys.stderr)
        yield None
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()


def prefixes(table: Table, index: farindex.Index, redis: Any) -> None:
    rng = random.Random(1)
    keys = [rng.randbytes(16) for _ in range(BLOCKS)]
    others = [rng.randbytes(16) for _ in range(100_000)]
    location = rng.randbytes(16)
    index.set_many((key, location) for key in [*keys, *others])
    ways: dict[str, Callable[[], object]] = {"farindex: exists_prefix": lambda: index.exists_prefix(keys)}
    assert index.exists_prefix(keys) == BLOCKS
    if redis is not None:
        for start in range(0, len(others), 1000):
            redis.mset(dict.fromkeys(others[start : start + 1000], location))
        redis.mset(dict.fromkeys(keys, location))

        def pipelined() -> int:
            pipeline = redis.pipeline(transaction=False)
            for key in keys:
                pipeline.exists(key)
            found = pipeline.execute()
            return found.index(0) if 0 in found else len(found)

        assert pipelined() == BLOCKS
        ways["redis-py: pipelined EXISTS"] = pipelined
        # EXISTS with many keys only counts them; MGET tells which. What a program would do that does not take "pipelined" literally.
        ways["redis-py: MGET"] = lambda: redis.mget(keys)
    base = list(ways)[1] if redis is not None else next(iter(ways))
    table.measure(f"Longest cached prefix of {BLOCKS} blocks", "look-ups/s", 1, ways, base)


def values(table: Table, index: farindex.Index, redis: Any) -> None:
    rng = random.Random(2)
    keys = [b"block-%d" % i for i in range(KEYS)]
    content = {key: rng.randbytes(VALUE) for key in keys}
    index.set_many(content)
    target = bytearray(KEYS * VALUE)
    view = memoryview(target)

    def of_dict() -> None:
        for i, key in enumerate(keys):
            view[i * VALUE : (i + 1) * VALUE] = content[key]

    def of_redis() -> None:
        for i, value in enumerate(redis.mget(keys)):
            view[i * VALUE : (i + 1) * VALUE] = value

    assert index.get_many_into(keys, target) == [VALUE] * KEYS
    assert bytes(target) == b"".join(content.values())
    ways: dict[str, Callable[[], object]] = {
        "farindex: get_many_into": lambda: index.get_many_into(keys, target),
        "farindex: get_many (bytes objects)": lambda: index.get_many(keys),
        "dict, copied into the same buffer": of_dict,
        "dict, references alone": lambda: [content[key] for key in keys],
    }
    if redis is not None:
        for start in range(0, KEYS, 100):
            redis.mset({key: content[key] for key in keys[start : start + 100]})
        of_redis()
        assert bytes(target) == b"".join(content.values())
        ways["redis-py: MGET, copied into the same buffer"] = of_redis
    base = list(ways)[-1] if redis is not None else "dict, copied into the same buffer"
    table.measure(f"{KEYS} values of {VALUE} bytes into a buffer", "values/s", KEYS, ways, base)


def threads(table: Table, index: farindex.Index) -> None:
    """Single look-ups, and batches, on one thread and on two."""
    rng = random.Random(3)
    keys = [b"key-%d" % i for i in range(10_000)]
    index.set_many((key, bytes(64)) for key in keys)
    lists = [rng.sample(keys, 1000) for _ in range(8)]

    def singles(which: int) -> None:
        get = index.get
        for key in lists[which]:
            get(key)

    def batches(which: int) -> None:
        for _ in range(4):
            index.get_many_into(lists[which], bytearray(64_000))

    def on(count: int, body: Callable[[int], None]) -> Callable[[], None]:
        def repeat(which: int) -> None:
            for _ in range(20):
                body(which)

        def run() -> None:
            running = [threading.Thread(target=repeat, args=(i,)) for i in range(count)]
            for thread in running:
                thread.start()
            for thread in running:
                thread.join()

        return run

    for title, body, each in (("get", singles, 1000), ("get_many_into of 1,000 keys", batches, 4000)):
        times: dict[int, list[float]] = {1: [], 2: []}
        for _ in range(table.rounds):
            for count in times:
                times[count].append(seconds_of(on(count, body)) / (count * each * 20))
        one, two = (1 / statistics.median(all) for all in times.values())
        print(f"\n{title}, 64 bytes, all threads together\n  1 thread   {one:12,.0f} gets/s\n  2 threads  {two:12,.0f} gets/s   {two / one:.2f}")


def sessions(table: Table, index: farindex.Index) -> None:
    """A session of the calling thread, as Index uses it, and worker threads, as AsyncIndex does."""
    rng = random.Random(4)
    keys = [b"key-%d" % i for i in range(10_000)]
    index.set_many((key, bytes(64)) for key in keys)
    some = rng.sample(keys, 256)
    words = index.open_async()
    loop = asyncio.new_event_loop()

    def own() -> None:
        for key in some:
            index.get(key)

    async def one_by_one() -> None:
        for key in some:
            await words.get(key)

    async def together() -> None:
        for start in range(0, len(some), 64):
            await asyncio.gather(*map(words.get, some[start : start + 64]))

    ways: dict[str, Callable[[], object]] = {
        "Index.get": own,
        "AsyncIndex.get, one after the other": lambda: loop.run_until_complete(one_by_one()),
        "AsyncIndex.get, 64 at a time": lambda: loop.run_until_complete(together()),
    }
    table.measure("Single look-ups of 64 bytes", "gets/s", len(some), ways, "Index.get")
    words.close()
    loop.close()


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    arguments.add_argument("--redis", type=int, help="port of a server on 127.0.0.1 to use in place of a redis-server")
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    table = Table(given.rounds)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder, redis_port(given.redis) as port:
        redis = None
        if port is not None:
            from redis import Redis

            redis = Redis("127.0.0.1", port)
        with farindex.Pool.create(f"shm:{folder}/pool", node_bytes="512MiB") as pool:
            prefixes(table, pool.create_index("blocks"), redis)
            values(table, pool.create_index("values"), redis)
            sessions(table, pool.create_index("sessions"))
            threads(table, pool.create_index("threads"))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
