"""An index for asyncio."""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

from ._native import Completions, IndexHandle
from ._outcome import Outcome
from ._types import Buffer, Items

T = TypeVar("T")

# One for each event loop. A loop that is gone takes its own along.
_completions: WeakKeyDictionary[asyncio.AbstractEventLoop, Completions] = WeakKeyDictionary()


def _completions_of(loop: asyncio.AbstractEventLoop) -> Completions:
    completions = _completions.get(loop)
    if completions is None:
        completions = Completions()
        loop.add_reader(completions.fileno(), completions.deliver)
        _completions[loop] = completions
    return completions


class AsyncIndex:
    """The operations of an index as coroutines, for any number of tasks of any number of event loops.

    >>> import asyncio, farindex
    >>> pool = farindex.Pool.in_memory("64MiB")
    >>> index = pool.create_index("words")
    >>> async def main():
    ...     async with index.open_async() as words:
    ...         await asyncio.gather(words.set(b"a", b"1"), words.set(b"b", b"2"))
    ...         return await words.get_many([b"a", b"b", b"c"])
    >>> asyncio.run(main())
    [b'1', b'2', None]

    `Index.open_async` makes one. Worker threads of the library carry the operations out: those that are awaited at the same time
    share batches. An operation that is awaited costs two wake-ups of threads, so a program that awaits one after the other is
    faster with the methods of `Index`, unless far memory is behind a network.

    **Cancelling** a task is safe. If no worker has taken its operation yet, the operation does not happen; else it runs to its
    end. It takes effect once at most.
    """

    def __init__(self, handle: IndexHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        """Its name in the pool."""
        return self._handle.name

    async def _run(self, start: Callable[..., int | None], *arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        completions = _completions_of(loop)
        future: asyncio.Future[Any] = loop.create_future()
        number = start(completions, future, *arguments)
        try:
            return await future
        except asyncio.CancelledError:
            if number is not None:
                completions.forget(number)
            raise

    @overload
    async def get(self, key: Buffer) -> bytes | None: ...
    @overload
    async def get(self, key: Buffer, default: T) -> bytes | T: ...
    async def get(self, key: Buffer, default: Any = None) -> Any:
        """Returns the value of a key, or `default`."""
        value = await self._run(self._handle.get, key)
        return default if value is None else value

    async def contains(self, key: Buffer) -> bool:
        """Returns whether a key is present."""
        return await self._run(self._handle.contains, key)  # type: ignore[no-any-return]

    async def get_many(self, keys: Iterable[Buffer]) -> list[bytes | None]:
        """Returns the values of many keys, in their order; ``None`` for keys that are absent."""
        return await self._run(self._handle.get_many, keys)  # type: ignore[no-any-return]

    async def exists_prefix(self, keys: Iterable[Buffer]) -> int:
        """Returns how many of the first keys are present: see `Index.exists_prefix`."""
        return await self._run(self._handle.exists_prefix, keys)  # type: ignore[no-any-return]

    async def set(self, key: Buffer, value: Buffer) -> None:
        """Sets the value of a key, present or not."""
        await self._run(self._handle.set, key, value)

    async def set_many(self, items: Items) -> None:
        """Sets the value of each key of a mapping, or of an iterable of pairs; the last pair of a key counts."""
        await self._run(self._handle.set_many, items)

    async def insert(self, key: Buffer, value: Buffer) -> bool:
        """Adds a key that is absent. Returns whether it was."""
        return await self._run(self._handle.insert, key, value)  # type: ignore[no-any-return]

    async def update_if_present(self, key: Buffer, value: Buffer) -> bool:
        """Changes the value of a key that is present. Returns whether it was."""
        return await self._run(self._handle.update_if_present, key, value)  # type: ignore[no-any-return]

    async def remove(self, key: Buffer) -> bool:
        """Removes a key. Returns whether it was present."""
        return await self._run(self._handle.remove, key)  # type: ignore[no-any-return]

    async def replace(self, key: Buffer, expected: Buffer, value: Buffer) -> Outcome:
        """Changes the value of a key from exactly `expected` to `value`: see `Index.replace`."""
        return await self._run(self._handle.replace, key, expected, value)  # type: ignore[no-any-return]

    async def remove_if(self, key: Buffer, expected: Buffer) -> Outcome:
        """Removes a key if it has exactly the value `expected`."""
        return await self._run(self._handle.remove_if, key, expected)  # type: ignore[no-any-return]

    async def scan(
        self,
        start: Buffer | None = None,
        stop: Buffer | None = None,
        *,
        include_start: bool = True,
        include_stop: bool = False,
        limit: int,
    ) -> list[tuple[bytes, bytes]]:
        """Returns at most `limit` entries from `start` to `stop`, in ascending order of their keys: see `Index.range`."""
        bounds = (start, stop, include_start, include_stop, limit)
        return await self._run(self._handle.scan, *bounds)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the worker threads when the operations in flight have ended. Every later operation raises `PoolClosed`."""
        self._handle.close()

    async def __aenter__(self) -> "AsyncIndex":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Joining the workers takes as long as what they have in flight: not on the loop's thread.
        await asyncio.to_thread(self.close)

    def __reduce__(self) -> Any:
        raise TypeError("an AsyncIndex cannot be pickled: open the pool and the index in the other process")


AsyncIndex.__module__ = "farindex"
