"""An index for asyncio."""

import asyncio
import threading
from collections.abc import Callable

import farindex
import pytest

LIMIT = 30


def run(body: Callable[[], object]) -> object:
    return asyncio.run(asyncio.wait_for(body(), LIMIT))


def test_every_operation(tree: farindex.Index) -> None:
    async def body() -> None:
        async with tree.open_async() as words:
            assert words.name == "tree"
            assert await words.get(b"a") is None and await words.get(b"a", 5) == 5
            await words.set(b"a", bytearray(b"1"))
            assert await words.get(b"a") == b"1" and await words.contains(b"a")
            assert not await words.contains(b"b")
            assert await words.insert(b"b", b"2") and not await words.insert(b"b", b"3")
            assert await words.update_if_present(b"b", b"3") and not await words.update_if_present(b"c", b"3")
            assert await words.replace(b"b", b"3", b"4") is farindex.Outcome.DONE
            assert await words.replace(b"b", b"3", b"5") is farindex.Outcome.DIFFERS
            assert await words.remove_if(b"c", b"3") is farindex.Outcome.ABSENT
            assert await words.get_many([b"a", b"x", b"b"]) == [b"1", None, b"4"]
            assert await words.exists_prefix([b"a", b"b", b"x"]) == 2
            await words.set_many({b"%d" % i: b"" for i in range(300)})
            await words.set_many([(b"a", b"first"), (b"a", b"last")])
            assert await words.scan(b"297", b"299", limit=9) == [(b"297", b""), (b"298", b"")]
            assert await words.scan(b"a", include_start=False, limit=9) == [(b"b", b"4")]
            assert await words.scan(b"9", b"a", include_stop=True, limit=99) != []
            assert await words.remove(b"a") and not await words.remove(b"a")

    run(body)
    assert len(tree) == 301 and tree[b"b"] == b"4"


def test_thousands_in_flight(index: farindex.Index) -> None:
    async def body() -> None:
        async with index.open_async(threads=2, queue=64, batch=16) as words:
            await asyncio.gather(*(words.set(b"%d" % i, b"%d" % (i * i)) for i in range(3000)))
            values = await asyncio.gather(*(words.get(b"%d" % i) for i in range(3000)))
            assert values == [b"%d" % (i * i) for i in range(3000)]

    run(body)
    assert len(index) == 3000


def test_updates_of_tasks_are_not_lost(index: farindex.Index) -> None:
    async def body() -> None:
        async with index.open_async(threads=2) as words:
            await words.set(b"count", b"0")

            async def add() -> None:
                for _ in range(20):
                    while True:
                        seen = await words.get(b"count")
                        assert seen is not None
                        if await words.replace(b"count", seen, b"%d" % (int(seen) + 1)):
                            break

            await asyncio.gather(*(add() for _ in range(20)))

    run(body)
    assert index[b"count"] == b"400"


def test_errors(index: farindex.Index, pool: farindex.Pool) -> None:
    async def body() -> None:
        words = index.open_async()
        with pytest.raises(farindex.KeyTooLong):
            await words.get(b"k" * (index.max_key_size + 1))
        with pytest.raises(farindex.NotOrdered):
            await words.scan(limit=1)
        with pytest.raises(TypeError):
            await words.get("text")
        with pytest.raises(TypeError):
            await words.get_many([1])
        assert await words.get(b"a") is None
        words.close()
        words.close()
        with pytest.raises(farindex.PoolClosed, match="closed"):
            await words.get(b"a")
        other = index.open_async()
        await other.set(b"a", b"1")
        pool.close()
        with pytest.raises(farindex.PoolClosed):
            await other.get(b"a")

    run(body)


def test_a_full_pool() -> None:
    async def body() -> None:
        with farindex.Pool.in_memory("8MiB") as pool:
            async with pool.create_index("test").open_async() as words:
                with pytest.raises(farindex.PoolFull):
                    await words.set_many({b"%d" % i: bytes(100_000) for i in range(200)})
                assert await words.get(b"absent") is None

    run(body)


def test_cancelling(index: farindex.Index) -> None:
    """A cancelled operation takes effect once at most, and the handle stays at work; nothing is left behind."""
    from farindex import _aio

    async def body() -> None:
        async with index.open_async(queue=4, batch=2) as words:
            for round in range(20):
                tasks = [asyncio.create_task(words.insert(b"%d-%d" % (round, i), b"1")) for i in range(50)]
                await asyncio.sleep(0 if round % 2 else 0.0005)
                for task in tasks[::2]:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(result is True or isinstance(result, asyncio.CancelledError) for result in results)
                assert all(result is True for result in results[1::2])
                for i in range(1, 50, 2):
                    assert await words.get(b"%d-%d" % (round, i)) == b"1"
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0):
                    await words.get(b"a")
            assert len(_aio._completions_of(asyncio.get_running_loop())) == 0

    run(body)


def test_several_loops_in_several_threads(index: farindex.Index) -> None:
    words = index.open_async(threads=2)
    failures: list[BaseException] = []

    def loop(name: int) -> None:
        async def body() -> None:
            for i in range(100):
                await words.set(b"%d-%d" % (name, i), b"1")
                assert await words.get(b"%d-%d" % (name, i)) == b"1"

        try:
            run(body)
            run(body)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=loop, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not failures and len(index) == 400
    words.close()


def test_a_loop_that_ends_with_operations_in_flight(run: Callable[..., str]) -> None:
    code = """
        import asyncio, farindex
        pool = farindex.Pool.in_memory("64MiB")
        index = pool.create_index("test")
        words = index.open_async()
        async def body():
            for i in range(1000):
                asyncio.ensure_future(words.set(b"%d" % i, b""))
            await asyncio.sleep(0)
        for _ in range(5):
            asyncio.run(body())
        async def after():
            return await words.get(b"absent")
        print(asyncio.run(after()))
        words.close()
        pool.close()
    """
    assert run(code) == "None\n"
