"""Exceptions by kind, closed pools, pickling, settings."""

import copy
import gc
import os
import pickle
from collections.abc import Callable

import farindex
import pytest


def test_every_exception_is_a_farindex_error() -> None:
    classes = [value for name in farindex.__all__ if isinstance(value := getattr(farindex, name), type)]
    errors = [one for one in classes if issubclass(one, BaseException)]
    assert len(errors) > 25
    for one in errors:
        assert issubclass(one, farindex.FarindexError) and one.__module__ == "farindex" and one.__doc__
    assert issubclass(farindex.PoolFull, MemoryError) and issubclass(farindex.NoSuchIndex, LookupError)


def test_a_full_pool() -> None:
    with farindex.Pool.in_memory("8MiB") as pool:
        index = pool.create_index("test")
        stored = 0
        with pytest.raises(farindex.PoolFull, match="full"):
            for stored in range(1000):  # noqa: B007
                index[b"%d" % stored] = bytes(100_000)
        assert 10 < stored < 1000
        with pytest.raises(farindex.PoolFull):
            index.set_many((b"more-%d" % i, bytes(100_000)) for i in range(1000))
        assert index[b"0"] == bytes(100_000), "nothing is lost"
        for i in range(stored):
            del index[b"%d" % i]


def test_pools_that_cannot_be_opened(path: str, tmp_path: object) -> None:
    with pytest.raises(farindex.ConfigError, match="memory:1GiB, shm:"):
        farindex.Pool.open("nonsense")
    with pytest.raises(farindex.ConfigError, match="size of each memory node"):
        farindex.Pool.create(path)
    with pytest.raises(farindex.ConfigError):
        farindex.Pool.open("memory:1GiB")
    with pytest.raises(farindex.RegionError):
        farindex.Pool.open(path)
    with pytest.raises(OSError):
        farindex.Pool.open(path)
    other = tmp_path / "file"
    other.write_bytes(b"no pool." * 8192)
    with pytest.raises(farindex.NotAPool, match="create one"):
        farindex.Pool.open(f"shm:{other}")
    # Nothing listens there; and without a network in the build the message says how to build it.
    with pytest.raises((farindex.Unsupported, farindex.ConnectionFailed)):
        farindex.Pool.open("connect:127.0.0.1:1")
    with farindex.Pool.create(path, node_bytes=64 << 20, client_slots=2, lease=0.5) as pool:
        with pytest.raises((farindex.PoolExists, farindex.RegionError)):
            farindex.Pool.create(path, node_bytes="64MiB")
        with farindex.Pool.open(path):
            assert pool.client_count() == 2
            with pytest.raises(farindex.NoClientSlot, match="2 client slots"):
                farindex.Pool.open(path)


def test_settings(pool: farindex.Pool) -> None:
    with pytest.raises(farindex.ConfigError, match="no number of seconds"):
        farindex.Pool.in_memory("64MiB", lease=-1)
    with pytest.raises(farindex.ConfigError):
        farindex.Pool.in_memory("64 parsecs")
    with pytest.raises(farindex.ConfigError):
        farindex.Pool.in_memory(1)
    with pytest.raises(OverflowError):
        farindex.Pool.in_memory(-1)
    with pytest.raises(farindex.ConfigError, match="there are shard"):
        pool.create_index("test", "tree")
    with pytest.raises(TypeError, match="no setting 'depth'|no setting \"depth\""):
        pool.create_index("test", "shard", depth=3)
    with pytest.raises(farindex.ConfigError, match="width"):
        pool.create_index("test", "linear", width="wide")
    with pytest.raises(TypeError, match="a bool, a number or a str"):
        pool.create_index("test", "linear", width=None)
    with pytest.raises(farindex.ConfigError):
        pool.create_index("", "shard")
    assert "test" not in pool.indexes()
    pool.create_index("test", "linear", width=16)
    assert pool.indexes()["test"]["settings"]["width"] == 16
    with farindex.Pool.in_memory(
        "64MiB", nodes=2, lease=2.5, client_slots=8, chunk_bytes="64KiB", hash_key=7, deadline=1
    ) as other:
        assert len(other.usage()) == 2 and other.usage()[0]["data_bytes"] > 32 << 20
        other.create_index("test")[b"a"] = b"1"
        assert other.missed_leases == 0


def test_names(pool: farindex.Pool) -> None:
    first = pool.create_index("test", "sherman")
    first[b"a"] = b"1"
    with pytest.raises(farindex.IndexExists):
        pool.create_index("test")
    with pytest.raises(farindex.WrongKind, match="sherman"):
        pool.open_index("test", "shard")
    with pytest.raises(farindex.WrongKind):
        pool.open_or_create_index("test", "dex")
    assert pool.open_index("test", "sherman")[b"a"] == b"1"
    assert pool.open_or_create_index("test", "sherman")[b"a"] == b"1"
    assert first.name == "test" and first.kind == "sherman" and "test" in repr(first)
    pool.drop_index("test")
    with pytest.raises(farindex.NoSuchIndex):
        pool.open_index("test")
    with pytest.raises(farindex.IndexDropped):
        for i in range(1000):
            first[b"%d" % i] = b"2"


def test_a_closed_pool(pool: farindex.Pool, index: farindex.Index) -> None:
    index[b"a"] = b"1"
    iterator = iter(index)
    next(iterator)
    pool.close()
    pool.close()
    assert pool.closed and "closed" in repr(pool)
    for use in (
        lambda: index[b"a"],
        lambda: index.get_many([b"a"]),
        lambda: index.insert(b"a", b""),
        lambda: len(index),
        lambda: list(index),
        lambda: index.open_async(),
        lambda: pool.create_index("other"),
        lambda: pool.indexes(),
        lambda: pool.missed_leases,
    ):
        with pytest.raises(farindex.PoolClosed, match="open it again"):
            use()
    with pytest.raises(ValueError):
        index[b"a"] = b"1"


def test_closing_gives_the_client_slot_back(path: str) -> None:
    with farindex.Pool.create(path, node_bytes="64MiB") as watcher:
        for _ in range(3):
            with farindex.Pool.open(path) as pool:
                pool.open_or_create_index("test")[b"a"] = b"1"
                assert watcher.client_count() == 2
            assert watcher.client_count() == 1
        # An object that nobody holds any more closes its pool too.
        pool = farindex.Pool.open(path)
        index = pool.open_index("test")
        del pool
        assert index[b"a"] == b"1" and watcher.client_count() == 2
        entries = iter(index)
        next(entries)
        del index, entries
        gc.collect()
        assert watcher.client_count() == 1


def test_pickling_and_copying(pool: farindex.Pool, index: farindex.Index) -> None:
    for one in (pool, index, index.open_async()):
        for use in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled.*other process"):
                use(one)


def test_the_end_of_the_interpreter(run: Callable[..., str], path: str) -> None:
    """With pools, handles, iterators and threads that are still at work. Other clients need not wait for a lease."""
    code = """
        import sys, threading, asyncio, farindex
        pool = farindex.Pool.create(sys.argv[1], node_bytes="64MiB", lease=60)
        index = pool.create_index("test")
        index.update({b"%d" % i: b"" for i in range(1000)})
        entries = iter(index)
        next(entries)
        words = index.open_async()
        asyncio.run(words.set(b"async", b"1"))
        started = threading.Event()
        def work():
            other = farindex.Pool.in_memory("64MiB").create_index("busy")
            try:
                while True:
                    other[b"a"] = b"1"
                    started.set()
            except farindex.PoolClosed:
                pass  # the end of the interpreter closes all pools
        threading.Thread(target=work, daemon=True).start()
        threading.Thread(target=lambda: index.get(b"1")).start()
        assert started.wait(10)
        print("end")
    """
    assert run(code, path) == "end\n"
    with farindex.Pool.open(path, recover=False) as pool:
        assert pool.client_count() == 1, "it has given its slot back"
        assert pool.open_index("test")[b"async"] == b"1"


def test_version() -> None:
    assert farindex.__version__.count(".") == 2
    assert os.path.isfile(os.path.join(os.path.dirname(farindex.__file__), "py.typed"))
