"""
A property that is computed once for each object, like functools' `cached_property`, and without its lock.

Python 3.11 has one lock there for all objects of all threads, held while the value is computed. A child that is forked
at that moment inherits it held, and waits for ever at the same property of another object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, overload

if TYPE_CHECKING:
    from collections.abc import Callable

T_co = TypeVar("T_co", covariant=True)


class once(Generic[T_co]):  # noqa: N801 - it is used like `property`
    """Computes a value when it is first asked for; of two threads that ask at once, both may."""

    def __init__(self, compute: Callable[[Any], T_co]) -> None:
        self._compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Learn under which name the value is kept."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T_co: ...

    def __get__(self, instance: object, owner: type) -> Self | T_co:
        """Compute the value, and keep it where Python looks before it asks here again."""
        if instance is None:
            return self
        value = self._compute(instance)
        vars(instance)[self._name] = value
        return value
