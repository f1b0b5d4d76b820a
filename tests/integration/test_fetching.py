"""What counts as a sign that a worker fetches: Redis' answers, want of room, and that Redis is away."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import redis
from dramatiq.errors import ConnectionClosed

from flowforge.actors.consumer import DispatchConsumer, Fetching
from flowforge.actors.intake import Intake
from flowforge.broker import Runway, connect_redis
from flowforge.embedded.servers import ValkeyServer
from flowforge.settings import Settings
from tests.unit.actors.attempts import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from flowforge.actors.runtime import Runtime


@pytest.fixture
def fetching(valkey: ValkeyServer) -> Fetching:
    """With a client of its own."""
    return Fetching(connect_redis(Settings(redis_url=valkey.url)))


@pytest.fixture
def process(valkey: ValkeyServer, settings: Settings) -> Runtime:
    """A worker process with one thread, on a runway."""
    process = runtime()
    process.runway = Runway(connect_redis(Settings(redis_url=valkey.url)), settings.namespace)
    return process


def beats(fetching: Fetching, act: Callable[[], object]) -> bool:
    """Whether an act is a sign of life."""
    fetching.beat()  # the first look sees nothing yet
    before = fetching.beat()
    act()
    return fetching.beat() != before


def fetch(process: Runtime, fetching: Fetching) -> object:
    """Ask once, as Dramatiq does."""
    return next(DispatchConsumer(process, Intake(process), fetching, 10))


def test_a_fetch_that_finds_nothing_is_one(process: Runtime, fetching: Fetching) -> None:
    assert beats(fetching, lambda: fetch(process, fetching))


def test_want_of_room_is_one(process: Runtime, fetching: Fetching, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is busy for hours."""
    monkeypatch.setattr(Runway, "pop", None)
    process.holding.occupy()

    assert beats(fetching, lambda: fetch(process, fetching))


def test_that_nothing_was_asked_is_none_while_redis_answers(fetching: Fetching) -> None:
    """B032."""
    assert not beats(fetching, lambda: None)


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (redis.ConnectionError("lost"), False),
        (redis.TimeoutError("no answer"), False),
        (redis.ReadOnlyError("a replica now: a new connection leads to the new primary"), False),
        (redis.ResponseError("MISCONF: no other process would fare better"), True),
        (redis.OutOfMemoryError("nor here"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_refusal_is_one_unless_a_new_process_would_fare_better(
    process: Runtime, fetching: Fetching, monkeypatch: pytest.MonkeyPatch, error: redis.RedisError, *, counts: bool
) -> None:
    """B032."""

    def pop(*_: object, **__: object) -> None:
        raise error

    def refused() -> None:
        with pytest.raises(ConnectionClosed):
            fetch(process, fetching)

    monkeypatch.setattr(Runway, "pop", pop)

    assert beats(fetching, refused) is counts


def test_that_redis_is_away_is_one_until_it_is_back(settings: Settings) -> None:
    """B032: nobody is to blame for it."""
    with ValkeyServer() as server:
        fetching = Fetching(connect_redis(replace(settings, redis_url=server.url)))
        assert not beats(fetching, lambda: None)

    assert beats(fetching, lambda: None)
