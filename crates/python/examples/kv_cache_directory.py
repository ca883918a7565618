"""A directory of key-value cache blocks of language-model servers, in shared memory.

A server splits a prompt into blocks of tokens. The keys and values that attention has computed for a block depend on all tokens
before it, so a block is named by a *chained hash*: the hash of its parent's hash and of its own tokens. The directory says which
blocks are cached, and where. For a new prompt the server asks for the longest prefix of its blocks that is there, in one crossing
(`exists_prefix`), and computes only the rest.

Here several worker processes serve prompts at the same time. None of them owns the directory: it is an index in a pool of shared
memory. One worker is killed with SIGKILL in the middle of its work; the others go on, and every block that it has published is
there.

    python crates/python/examples/kv_cache_directory.py
"""

import hashlib
import multiprocessing
import os
import random
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

import farindex

# Tokens of a block.
BLOCK = 16

# A location as bytes: worker, slot, generation.
LOCATION = "<IQI"


class Location(NamedTuple):
    """Where the keys and values of a block are: on which worker, in which slot of its cache, since when."""

    worker: int
    slot: int
    generation: int

    def pack(self) -> bytes:
        return struct.pack(LOCATION, *self)

    @classmethod
    def unpack(cls, value: bytes) -> "Location":
        return cls(*struct.unpack(LOCATION, value))


def block_hashes(tokens: Sequence[int]) -> list[bytes]:
    """The chained hashes of the whole blocks of a prompt."""
    hashes, parent = [], b"model: demo"
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        block = struct.pack(f"<{BLOCK}I", *tokens[start : start + BLOCK])
        parent = hashlib.blake2b(parent + block, digest_size=16).digest()
        hashes.append(parent)
    return hashes


class Directory:
    """Which blocks are cached, and where. Any number of processes open it by the pool's place."""

    def __init__(self, url: str) -> None:
        self._pool = farindex.Pool.open(url)
        self._index = self._pool.open_or_create_index("kv-blocks")

    def cached_prefix(self, hashes: Sequence[bytes]) -> int:
        """How many blocks of a prompt are cached: one crossing for all of them."""
        return self._index.exists_prefix(hashes)

    def locate(self, hashes: Sequence[bytes]) -> list[Location]:
        """Where the first blocks of a prompt are, up to the first one that is not cached."""
        found = []
        for value in self._index.get_many(hashes):
            if value is None:
                break
            found.append(Location.unpack(value))
        return found

    def publish(self, hashes: Sequence[bytes], locations: Sequence[Location]) -> None:
        """Tells everyone where blocks are. Of workers that have computed the same block at the same time, one wins."""
        self._index.set_many(zip(hashes, (location.pack() for location in locations), strict=True))

    def evict(self, block: bytes, location: Location) -> bool:
        """Withdraws a block whose memory is to be reused, unless another worker has published it since."""
        return bool(self._index.remove_if(block, location.pack()))

    def close(self) -> None:
        self._pool.close()


def prompts(seed: int) -> list[list[int]]:
    """Conversations: each turn's prompt is the one before it and some more; all begin with one of a few system prompts."""
    rng = random.Random(seed)
    systems = [[random.Random(system).randrange(32_000) for _ in range(32 * BLOCK)] for system in range(4)]
    result = []
    for _ in range(20):
        prompt = list(rng.choice(systems))
        for _ in range(4):
            prompt += [rng.randrange(32_000) for _ in range(rng.randrange(2, 8) * BLOCK)]
            result.append(list(prompt))
    return result


def serve(url: str, worker: int, rounds: int, to_parent: Connection) -> None:
    """A worker: for each prompt, takes what is cached, computes the rest, and publishes it."""
    directory = Directory(url)
    slot = hits = blocks = 0
    for round in range(rounds):
        for prompt in prompts(1000 * worker + round):
            hashes = block_hashes(prompt)
            cached = directory.cached_prefix(hashes)
            assert cached <= len(directory.locate(hashes)), "nobody evicts what is in use here"
            new = [Location(worker, slot + i, round) for i in range(len(hashes) - cached)]
            slot += len(new)
            # (Here a model would compute the new blocks.)
            directory.publish(hashes[cached:], new)
            hits, blocks = hits + cached, blocks + len(hashes)
        to_parent.send((round, hits, blocks))
    directory.close()


def reports(pipe: Connection) -> list[tuple[int, int, int]]:
    """What a worker that has ended has reported: round, cached blocks so far, blocks so far."""
    result = []
    try:
        while True:
            result.append(pipe.recv())
    except EOFError:
        return result


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kv-cache-") as folder:
        url = f"shm:{folder}/pool"
        # This process, which starts the service, creates the pool. It could end now: the workers need it no more than each other.
        with farindex.Pool.create(url, node_bytes="256MiB", lease=1):
            processes = multiprocessing.get_context("spawn")
            started = time.perf_counter()
            workers, pipes = [], []
            for number in range(4):
                receiver, sender = processes.Pipe(duplex=False)
                rounds = 1_000_000 if number == 0 else 8
                worker = processes.Process(target=serve, args=(url, number, rounds, sender), daemon=True)
                worker.start()
                sender.close()
                workers.append(worker)
                pipes.append(receiver)

            victim, victim_pipe = workers[0], pipes[0]
            acknowledged = victim_pipe.recv()[0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            victim.join(30)
            assert victim.exitcode == -signal.SIGKILL
            print(f"worker 0 was killed in the middle of its round {acknowledged + 1} or a later one")

            hits = blocks = 0
            for number, (worker, pipe) in enumerate(zip(workers, pipes, strict=True)):
                if number > 0:
                    worker.join(60)
                    assert worker.exitcode == 0, f"worker {number} goes on to its end"
                    _, its_hits, its_blocks = reports(pipe)[-1]
                    hits, blocks = hits + its_hits, blocks + its_blocks
            took = time.perf_counter() - started
            print(f"workers 1 to 3 served on: {hits} of {blocks} blocks were cached ({took:.1f} s with their start)")

            directory = Directory(url)
            published = [block_hashes(prompt) for round in range(acknowledged + 1) for prompt in prompts(round)]
            assert all(directory.cached_prefix(hashes) == len(hashes) for hashes in published)
            print(f"every block that worker 0 had published in {acknowledged + 1} rounds is there")

            # Its blocks are gone with its memory: withdrawn, unless another worker has them too.
            withdrawn = 0
            for hashes in published:
                for block, location in zip(hashes, directory.locate(hashes), strict=False):
                    if location.worker == 0:
                        withdrawn += directory.evict(block, location)
            longest = max(published, key=len)
            print(f"{withdrawn} blocks withdrawn; of a prompt of {len(longest)}, {directory.cached_prefix(longest)} are left")
            assert withdrawn > 0 and directory.cached_prefix(longest) < len(longest)
            directory.close()


if __name__ == "__main__":
    main()
    sys.exit(0)
