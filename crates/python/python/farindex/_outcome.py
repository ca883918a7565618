"""What a conditional operation did."""

from enum import Enum


class Outcome(Enum):
    """What `Index.replace` or `Index.remove_if` did. It is true if the operation took effect."""

    DONE = "done"
    """The key had the expected value, and the operation took effect."""
    DIFFERS = "differs"
    """The key has another value than the expected one. Nothing changed."""
    ABSENT = "absent"
    """The key was absent. Nothing changed."""

    def __bool__(self) -> bool:
        return self is Outcome.DONE


Outcome.__module__ = "farindex"
