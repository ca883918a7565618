"""Indexes in far memory: mutable mappings of bytes that any number of processes use at once, without a server.

>>> import farindex
>>> with farindex.Pool.in_memory("64MiB") as pool:
...     index = pool.create_index("words")
...     index[b"far"] = b"memory"
...     index[b"far"]
b'memory'

`Pool.create` and `Pool.open` take the place of a pool that processes share, such as ``"shm:/dev/shm/demo"``.

Threads share a `Pool` and its `Index` objects. Processes do not: a child of ``fork`` opens the pool itself, and neither class can
be pickled.
"""

import atexit as _atexit
import os as _os
from collections.abc import MutableMapping as _MutableMapping

from . import _native
from ._aio import AsyncIndex
from ._errors import (
    CatalogFull,
    ConfigError,
    ConnectionFailed,
    Corrupted,
    DeadlineExceeded,
    FarindexError,
    ForkedProcess,
    IndexDropped,
    IndexExists,
    IndexFull,
    KeyTooLong,
    LeaseLost,
    Locked,
    NoClientSlot,
    NoSuchIndex,
    NotAlone,
    NotAPool,
    NotOrdered,
    NotOwner,
    NotPartitioned,
    NotWrittenBack,
    PoolClosed,
    PoolExists,
    PoolFull,
    ReadOnly,
    RegionError,
    Unsupported,
    ValueTooLong,
    VersionMismatch,
    WorkerFailed,
    WrongKind,
    WrongThread,
)
from ._native import Index, Pool, __version__, kinds
from ._outcome import Outcome

__all__ = [
    "AsyncIndex",
    "CatalogFull",
    "ConfigError",
    "ConnectionFailed",
    "Corrupted",
    "DeadlineExceeded",
    "FarindexError",
    "ForkedProcess",
    "Index",
    "IndexDropped",
    "IndexExists",
    "IndexFull",
    "KeyTooLong",
    "LeaseLost",
    "Locked",
    "NoClientSlot",
    "NoSuchIndex",
    "NotAPool",
    "NotAlone",
    "NotOrdered",
    "NotOwner",
    "NotPartitioned",
    "NotWrittenBack",
    "Outcome",
    "Pool",
    "PoolClosed",
    "PoolExists",
    "PoolFull",
    "ReadOnly",
    "RegionError",
    "Unsupported",
    "ValueTooLong",
    "VersionMismatch",
    "WorkerFailed",
    "WrongKind",
    "WrongThread",
    "__version__",
    "kinds",
]

_MutableMapping.register(Index)
# The end of the interpreter tells other processes at once that this client is gone; a child closes nothing of its parent.
_atexit.register(_native._close_all)
_os.register_at_fork(after_in_child=_native._after_fork_in_child)
