"""Exceptions by kind. Each message says what to do."""


class FarindexError(Exception):
    """Something failed in a pool or an index. All exceptions of the package are of this class."""


class ConfigError(FarindexError, ValueError):
    """A pool's place, its settings, or those of an index make no sense."""


class PoolClosed(FarindexError, ValueError):
    """The pool was closed by this process."""


class ForkedProcess(FarindexError, RuntimeError):
    """The pool was opened by the process that this one was forked from. Open it again here."""


class WrongThread(FarindexError, RuntimeError):
    """An iterator over an unordered index was continued by another thread than the one that began it."""


class WorkerFailed(FarindexError, RuntimeError):
    """A worker thread of an `AsyncIndex` could not be started, or has ended by a defect."""


class Unsupported(FarindexError, NotImplementedError):
    """This build lacks the fabric, or the fabric lacks what was asked for."""


class RegionError(FarindexError, OSError):
    """The memory of a node could not be opened, created or mapped."""


class ConnectionFailed(FarindexError, ConnectionError):
    """A memory node cannot be reached, or refuses this client. Writes in flight may have taken effect or not."""


class DeadlineExceeded(FarindexError, TimeoutError):
    """A memory node did not answer in time. Writes in flight may have taken effect or not."""


class ReadOnly(FarindexError, PermissionError):
    """The memory node may only be read from here."""


class NotAPool(FarindexError, ValueError):
    """The memory holds no pool."""


class PoolExists(FarindexError, FileExistsError):
    """The memory holds a pool already."""


class VersionMismatch(FarindexError):
    """The pool or the index was written by another version of the library."""


class Corrupted(FarindexError):
    """Far memory holds bytes that no client writes."""


class PoolFull(FarindexError, MemoryError):
    """No room is left in the pool. The index is as it was before."""


class CatalogFull(PoolFull):
    """The pool has as many indexes as it can have."""


class IndexFull(PoolFull):
    """The index has no room for this key: too many keys agree in their hashes."""


class NoClientSlot(FarindexError):
    """As many processes have the pool open as it has client slots."""


class LeaseLost(FarindexError):
    """This process was silent for longer than a lease, and another one has evicted it. Open the pool again."""


class NotAlone(FarindexError):
    """Other processes have the pool open."""


class NotWrittenBack(FarindexError):
    """What this process has changed in its cache alone could not be written to far memory."""


class NoSuchIndex(FarindexError, LookupError):
    """The pool has no index of this name."""


class IndexExists(FarindexError):
    """The pool has an index of this name already."""


class IndexDropped(FarindexError):
    """The index was dropped while it was open."""


class WrongKind(FarindexError, TypeError):
    """The index is of another kind than the one it was opened as."""


class NotOrdered(FarindexError, TypeError):
    """The index has no order of keys, and so no ranges."""


class NotPartitioned(FarindexError, TypeError):
    """The index is not divided among compute nodes: there is nothing to own."""


class NotOwner(FarindexError):
    """Another process owns the key."""


class KeyTooLong(FarindexError, ValueError):
    """The key is longer than the index takes."""


class ValueTooLong(FarindexError, ValueError):
    """The value is longer than the index takes, or than a record of the buffer that it was to be read into."""


class Locked(FarindexError, TimeoutError):
    """Another client that is alive has held a lock for longer than two leases."""


# Where users meet them.
for _class in list(globals().values()):
    if isinstance(_class, type) and issubclass(_class, FarindexError):
        _class.__module__ = "farindex"
