"""A child of fork is no client of its parent's pool: it is told so, and it disturbs nothing."""

import os
import sys
from collections.abc import Callable

import farindex


def in_child(body: Callable[[], None], leave: Callable[[int], None] = os._exit) -> int:
    """Runs `body` in a forked child; returns its exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            leave(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def test_every_operation_of_a_child_is_refused(shared: farindex.Pool) -> None:
    index = shared.open_index("test")
    index.update({b"%d" % i: b"" for i in range(600)})
    entries = iter(index)
    first = next(entries)
    words = index.open_async()

    def child() -> None:
        for use in (
            lambda: index[b"1"],
            lambda: index.insert(b"x", b""),
            lambda: list(index),
            lambda: list(entries),
            lambda: index.open_async(),
            lambda: shared.open_index("test"),
            lambda: shared.missed_leases,
        ):
            try:
                use()
            except farindex.ForkedProcess as error:
                assert "open the pool again" in str(error)
            else:
                raise AssertionError("not refused")
        shared.close()

    assert in_child(child) == 0
    # The parent goes on, with the same sessions, iterators and workers.
    assert index[b"1"] == b"" and shared.client_count() == 1
    assert {first, *entries} == {b"%d" % i for i in range(600)}
    words.close()


def test_a_child_that_opens_the_pool_itself_is_a_client(shared: farindex.Pool) -> None:
    index = shared.open_index("test")
    index[b"from"] = b"parent"

    def child() -> None:
        with farindex.Pool.open(shared.url) as own:
            mine = own.open_index("test")
            assert mine[b"from"] == b"parent"
            mine[b"from"] = b"child"
            assert own.client_count() == 2

    assert in_child(child) == 0
    assert index[b"from"] == b"child" and shared.client_count() == 1


def test_a_child_that_ends_as_a_program_closes_nothing(path: str, run: Callable[..., str]) -> None:
    """With destructors, atexit and the end of threads; and neither process hangs."""
    code = """
        import os, sys, asyncio, gc, farindex
        pool = farindex.Pool.create(sys.argv[1], node_bytes="64MiB")
        index = pool.create_index("test")
        index.update({b"%d" % i: b"" for i in range(600)})
        entries = iter(index)
        next(entries)
        words = index.open_async()
        asyncio.run(words.set(b"a", b"1"))
        child = os.fork()
        if child == 0:
            del entries, words, index, pool
            gc.collect()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert pool.client_count() == 1
        index[b"a"] = b"2"
        assert asyncio.run(words.get(b"a")) == b"2"
        print(len(list(entries)) + 1)
    """
    assert run(code, path) in ("600\n", "601\n")


def test_a_child_that_python_does_not_know_of_closes_nothing(path: str, run: Callable[..., str]) -> None:
    """A fork from C runs none of Python's hooks. What the child drops is compared with the process id."""
    code = """
        import ctypes, gc, os, sys, asyncio, farindex
        pool = farindex.Pool.create(sys.argv[1], node_bytes="64MiB")
        index = pool.create_index("test")
        index[b"a"] = b"1"
        words = index.open_async()
        asyncio.run(words.set(b"b", b"1"))
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            try:
                pool.open_index("test")
            except farindex.ForkedProcess:
                pass
            else:
                os._exit(1)
            words.close()
            pool.close()
            del words, index, pool
            gc.collect()
            sys.exit(7)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert pool.client_count() == 1 and index[b"a"] == b"1"
        print(asyncio.run(words.get(b"b")))
    """
    assert run(code, path) == "b'1'\n"


def test_multiprocessing(shared: farindex.Pool, run: Callable[..., str]) -> None:
    """By the method fork a task that uses the parent's index fails with a message; by spawn the index cannot be sent."""
    code = """
        import sys, multiprocessing, farindex
        pool = farindex.Pool.open(sys.argv[1])
        index = pool.open_index("test")
        def use(key):
            try:
                return index[key]
            except farindex.ForkedProcess as error:
                return "refused"
        def own(key):
            with farindex.Pool.open(sys.argv[1]) as pool:
                pool.open_index("test")[key] = b"1"
        with multiprocessing.get_context("fork").Pool(2) as workers:
            print(workers.map(use, [b"a"]))
            workers.map(own, [b"x", b"y"])
        print(index.get_many([b"x", b"y"]))
    """
    assert run(code, shared.url) == "['refused']\n[b'1', b'1']\n"
    sys.stdout.flush()
