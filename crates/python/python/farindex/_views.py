"""Views of an index: as those of `collections.abc`, but iterating over them looks no key up once more."""

from collections.abc import ItemsView as _ItemsView
from collections.abc import Iterator
from collections.abc import KeysView as KeysView
from collections.abc import ValuesView as _ValuesView

from ._native import Index

__all__ = ["ItemsView", "KeysView", "ValuesView"]


class ItemsView(_ItemsView[bytes, bytes]):
    """The pairs of key and value."""

    _mapping: Index

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return self._mapping._iter_items()


class ValuesView(_ValuesView[bytes]):
    """The values."""

    _mapping: Index

    def __iter__(self) -> Iterator[bytes]:
        return self._mapping._iter_values()
