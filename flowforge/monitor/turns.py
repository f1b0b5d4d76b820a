"""Turns: when a scheduler last did each of its duties, whichever scheduler that was."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import redis

_MISSED = 2  # turns, after which a duty is late
_SLACK = 1.0  # seconds that a turn may take and the clock may be off
_TELL_EVERY = 0.25  # seconds


class Turn(NamedTuple):
    """A duty that is due every so many seconds, and the age of its last good turn in seconds: None if none was seen."""

    duty: str
    every: float
    age: float | None

    @property
    def late(self) -> bool:
        """Whether two turns were missed, or more."""
        return self.age is not None and self.age > _MISSED * self.every + _SLACK


class Turns:
    """The last good turns, in one hash; times are the Redis server's, so that no two machines disagree."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self._client: Any = client  # redis-py types a reply as all that any command may answer
        self._key = f"{namespace}:turns"
        self._told: dict[str, float] = {}

    def tell(self, duty: str, every: float) -> None:
        """Keep that a duty has just done its work; of turns in a row that follow at once only some are told."""
        if time.monotonic() - self._told.get(duty, -_TELL_EVERY) < _TELL_EVERY:
            return
        self._client.hset(self._key, duty, json.dumps({"every": every, "at": self._now()}))
        self._told[duty] = time.monotonic()

    def last(self, duties: Sequence[str]) -> list[Turn]:
        """Return the last turns of these duties."""
        now, words = self._now(), self._client.hmget(self._key, list(duties))
        return [_read(duty, word, now) for duty, word in zip(duties, words, strict=True)]

    def _now(self) -> float:
        seconds, microseconds = self._client.time()
        return float(seconds + microseconds / 1_000_000)


def _read(duty: str, word: bytes | None, now: float) -> Turn:
    if word is None:
        return Turn(duty, every=0.0, age=None)
    told = json.loads(word)
    return Turn(duty, every=told["every"], age=max(now - told["at"], 0.0))
