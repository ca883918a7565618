"""Threads share a pool and its indexes."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import farindex
import pytest


@pytest.mark.parametrize("coalesce", [False, True])
def test_read_modify_writes_of_threads_lose_no_update(pool: farindex.Pool, coalesce: bool) -> None:
    index = pool.create_index("counters", coalesce=coalesce)
    index[b"count"] = b"0"

    def add(times: int) -> None:
        for _ in range(times):
            while True:
                seen = index[b"count"]
                if index.replace(b"count", seen, b"%d" % (int(seen) + 1)):
                    break

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, [100] * 8))
    assert index[b"count"] == b"800"


def test_one_of_many_inserts_and_one_of_many_pops(index: farindex.Index) -> None:
    barrier = threading.Barrier(8)

    def compete(name: int) -> list[bytes]:
        won = []
        for round in range(50):
            key, mine = b"%d" % round, b"%d by %d" % (round, name)
            barrier.wait(30)
            if index.setdefault(key, mine) == mine:
                won.append(b"set")
            barrier.wait(30)
            if index.pop(key, None) is not None:
                won.append(b"popped")
        return won

    with ThreadPoolExecutor(8) as threads:
        won = [one for all in threads.map(compete, range(8)) for one in all]
    assert won.count(b"set") == 50 and won.count(b"popped") == 50 and not index


def test_batches_of_threads(index: farindex.Index) -> None:
    def work(name: int) -> None:
        keys = [b"%d-%d" % (name, i) for i in range(300)]
        for round in range(5):
            index.set_many((key, b"%d" % round) for key in keys)
            assert index.get_many(keys) == [b"%d" % round] * 300
            assert index.exists_prefix([*keys, b"absent"]) == 300
            buffer = bytearray(300)
            index.get_many_into(keys, buffer)
            assert buffer == b"%d" % round * 300

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    assert len(index) == 1800


def test_the_gil_is_released_while_far_memory_works(index: farindex.Index) -> None:
    """A thread that counts runs while another is in one long call."""
    keys = [b"%d" % i for i in range(200_000)]
    index.set_many((key, b"") for key in keys[:1000])
    counted, stop = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    counter = threading.Thread(target=count)
    counter.start()
    time.sleep(0.05)
    before = counted
    found = index.contains_many(keys)
    during = counted - before
    stop.set()
    counter.join(30)
    assert sum(found) == 1000
    assert during > 1000, "it has counted during the call"


def test_an_iterator_of_an_unordered_index_stays_with_its_thread(index: farindex.Index, tree: farindex.Index) -> None:
    pairs = {b"%04d" % i: b"" for i in range(1000)}
    index.update(pairs)
    tree.update(pairs)
    with ThreadPoolExecutor(1) as other:
        entries = iter(index)
        first = [next(entries) for _ in range(300)]
        with pytest.raises(farindex.WrongThread, match="belongs to the thread"):
            other.submit(list, entries).result()
        assert len(set(first)) == 300
        # One that no thread has begun may begin anywhere, and those of ordered indexes move.
        assert len(other.submit(list, iter(index)).result()) == 1000
        moving = iter(tree)
        assert [next(moving) for _ in range(300)] + other.submit(list, moving).result() == sorted(pairs)
        # Dropped on another thread.
        begun = other.submit(lambda: (lambda it: (next(it), it)[1])(iter(index))).result()
        del begun
        assert len(other.submit(list, index).result()) == 1000


def test_closing_under_threads_at_work(path: str) -> None:
    """Operations either work or say that the pool is closed; then the process is no client any more."""
    with farindex.Pool.create(path, node_bytes="64MiB") as watcher:
        watcher.create_index("test")
        for _ in range(5):
            pool = farindex.Pool.open(path)
            index = pool.open_index("test")
            ready = threading.Barrier(5)

            def work() -> int:
                done = 0
                index[b"a"] = b"1"
                ready.wait(30)
                while True:
                    try:
                        index[b"a"] = b"%d" % done
                        index.get_many([b"a", b"b"])
                        done += 1
                    except farindex.PoolClosed:
                        return done

            with ThreadPoolExecutor(4) as threads:
                working = [threads.submit(work) for _ in range(4)]
                ready.wait(30)
                time.sleep(0.02)
                pool.close()
                assert sum(one.result(30) for one in working) > 0
            # The sessions end with their threads, which is a moment after Python has joined them.
            until = time.monotonic() + 30
            while watcher.client_count() != 1:
                assert time.monotonic() < until
                time.sleep(0.01)


def test_many_threads_come_and_go(index: farindex.Index) -> None:
    for round in range(30):
        threads = [threading.Thread(target=index.__setitem__, args=(b"%d-%d" % (round, i), b"")) for i in range(10)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(30)
    assert len(index) == 300


def test_a_thread_that_keeps_running_lets_go_at_its_next_use(path: str) -> None:
    with farindex.Pool.create(path, node_bytes="64MiB") as watcher, ThreadPoolExecutor(1) as other:
        watcher.create_index("test")
        pool = farindex.Pool.open(path)
        other.submit(pool.open_index("test").insert, b"a", b"1").result()
        pool.close()
        assert watcher.client_count() == 2
        assert other.submit(watcher.open_index("test").get, b"a").result() == b"1"
        assert watcher.client_count() == 1


def test_destructors_that_use_the_index(index: farindex.Index, run: Callable[..., str]) -> None:
    class Uses:
        def __del__(self) -> None:
            index.get(b"a")

    def keys():  # noqa: ANN202
        for i in range(100):
            Uses()
            yield b"%d" % i

    index.set_many((key, b"") for key in keys())
    assert len(index) == 100
    for key in index:
        Uses()
        assert key in index
