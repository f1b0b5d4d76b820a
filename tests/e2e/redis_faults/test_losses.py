"""A Valkey that forgets: what it held is found missing and sent again, and no more often than it was lost."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from flowforge.broker import Runway
from tests.e2e.redis_faults.accounts import ERRANDS, PROMISED, all_succeed, listed, published, sent, start
from tests.support import wait_for

if TYPE_CHECKING:
    import redis as redis_client

    from flowforge.chaos.proxy import Proxy
    from flowforge.embedded.servers import ValkeyServer
    from tests.e2e.conftest import Fleet

#: Dispatches that may be taken for lost, and sent once more, because they are between the list and their claim.
_ON_THEIR_WAY = 16


@pytest.mark.parametrize("number", [200, pytest.param(20_000, marks=pytest.mark.soak)])
def test_what_a_wiped_server_held_is_sent_again_within_ten_seconds(
    fleet: Fleet, redis: redis_client.Redis, number: int
) -> None:
    """B031, B037: FLUSHALL, and nobody has taken anything yet."""
    fleet.start("flowforge.scheduler", FLOWFORGE_RUNWAY=str(number))
    for _ in range(0, number, 200):
        start(200)
    before = wait_for(lambda: full(listed(redis, fleet.settings.namespace), number), seconds=20 + number / 100)

    redis.flushall()

    after = wait_for(lambda: full(listed(redis, fleet.settings.namespace), number), seconds=PROMISED)
    assert set(after) == set(before)
    fleet.worker(**ERRANDS)
    all_succeed(number, seconds=PROMISED + number / 100)


def full(waiting: list[object], number: int) -> list[object]:
    """Return what waits once it is so many."""
    return waiting if len(waiting) == number else []


@pytest.mark.soak
@pytest.mark.parametrize(("backlog", "seconds"), [(2_000, 20), (50_000, 300)], ids=["short", "long"])
def test_a_backlog_without_a_worker_is_sent_no_more_often_than_it_was_lost(
    distant: Fleet, network: Proxy, valkey: ValkeyServer, redis: redis_client.Redis, backlog: int, seconds: float
) -> None:
    """B031, B037: the server restarts empty, a consumer dies with what it popped, one message is deleted by hand."""
    runway = Runway(redis, distant.settings.namespace)
    room = distant.settings.runway
    heard, lost, began = network.listen(), Counter(), time.monotonic()
    distant.scheduler()
    for _ in range(backlog // 1000):
        start(1000)

    lost.update(wait_for(lambda: full(listed(redis, runway.namespace), room)))
    valkey.restart()
    before = wait_for(lambda: full(listed(redis, runway.namespace), room))
    runway.pop(["default"], limit=room // 2, seconds=1)
    redis.rpop(runway.key("default"))
    lost.update(before[: room // 2] + before[-1:])
    threading.Event().wait(began + seconds - time.monotonic())

    times = sent(heard)
    assert not unexplained(times, lost)
    assert (times.total(), published()) == (lost.total() + room, room)
    distant.worker(**ERRANDS)
    distant.worker(**ERRANDS)
    all_succeed(backlog, seconds=PROMISED + backlog / 100)
    assert unexplained(sent(heard), lost).total() <= _ON_THEIR_WAY


def unexplained(times: Counter[Any], lost: Counter[Any]) -> Counter[Any]:
    """Return how much more often dispatches were sent than once, and once more for each time that they were lost."""
    return times - Counter(dict.fromkeys(times, 1)) - lost
