"""Types of arguments."""

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from typing_extensions import Buffer
elif sys.version_info >= (3, 12):
    from collections.abc import Buffer
else:
    Buffer = Any

# A mapping, or an iterable of pairs.
Items: TypeAlias = Mapping[Any, Buffer] | Iterable[tuple[Buffer, Buffer]]

__all__ = ["Buffer", "Items"]
