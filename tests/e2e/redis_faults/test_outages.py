"""A Valkey that is out of reach: connections are lost in every way, and work resumes by itself."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.e2e.redis_faults.accounts import ERRANDS, all_succeed, remaining, start

if TYPE_CHECKING:
    from collections.abc import Callable

    import redis as redis_client

    from flowforge.chaos.proxy import Proxy
    from flowforge.embedded.servers import ValkeyServer
    from tests.e2e.conftest import Fleet

_NOWHERE = ("127.0.0.1", 1)
_SLOWEST_START = 1.0  # seconds


class Place(NamedTuple):
    """What there is to break."""

    server: ValkeyServer
    network: Proxy
    redis: redis_client.Redis


class Load(threading.Thread):
    """Runs that are started all the time, whatever becomes of Redis."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._stopped = threading.Event()
        self.started, self.slowest = 0, 0.0

    def run(self) -> None:
        """Start one every now and then."""
        while not self._stopped.wait(0.05):
            began = time.monotonic()
            start(1)
            self.started += 1
            self.slowest = max(self.slowest, time.monotonic() - began)

    def stop(self) -> int:
        """Start no more; return how many there were."""
        self._stopped.set()
        self.join()
        return self.started


def pause(seconds: float) -> None:
    """Let time pass."""
    threading.Event().wait(seconds)


def restart_five_times(place: Place, _: float) -> None:
    """Restart the server, empty, at moments that nobody can foresee."""
    for _restart in range(5):
        pause(random.uniform(0, 0.5))
        place.server.restart()


def kill_clients(place: Place, _: float) -> None:
    """End all connections from the server's side, some of them while they reconnect."""
    for _kill in range(10):
        place.redis.client_kill_filter(_type="normal", skipme=True)
        pause(random.uniform(0, 0.1))


def half_close(place: Place, _: float) -> None:
    """Close one side of each connection, again and again: what is popped for a client that does not hear is lost."""
    for _close in range(10):
        place.network.half_close()
        pause(random.uniform(0, 0.1))


def freeze(place: Place, seconds: float) -> None:
    """Stop the server's process for a while: it takes connections, and answers nothing."""
    os.kill(place.server.pid, signal.SIGSTOP)
    pause(seconds + 1)
    os.kill(place.server.pid, signal.SIGCONT)


def refuse(place: Place, seconds: float) -> None:
    """Close every connection, and each new one, for a while."""
    there, place.network.target = place.network.target, _NOWHERE
    place.network.cut()
    pause(seconds)
    place.network.target = there


def fall_silent(place: Place, seconds: float) -> None:
    """Forward nothing for a while, and close nothing."""
    place.network.stall()
    pause(seconds)
    place.network.flow()


OUTAGES: list[Callable[[Place, float], None]] = [
    restart_five_times,
    kill_clients,
    half_close,
    freeze,
    refuse,
    fall_silent,
]


@pytest.fixture
def running(distant: Fleet) -> Fleet:
    """A scheduler and a worker, which have done something."""
    distant.scheduler()
    distant.worker(**ERRANDS)
    start(1)
    all_succeed(1)
    return distant


@pytest.fixture
def place(valkey: ValkeyServer, network: Proxy, redis: redis_client.Redis) -> Place:
    return Place(valkey, network, redis)


def test_work_resumes_within_ten_seconds_of_every_outage(running: Fleet, place: Place) -> None:
    """B032, B109: no process is started anew, no start waits, and no task is claimed twice."""
    number = 1

    for outage in OUTAGES:
        load = Load()
        load.start()
        outage(place, 2)
        over = time.monotonic()
        pause(0.2)
        number += load.stop()
        all_succeed(number, seconds=remaining(over))
        assert load.slowest < _SLOWEST_START, outage

    assert [process.poll() for process in running.processes] == [None, None]


@pytest.mark.soak
@pytest.mark.parametrize("outage", [freeze, refuse, fall_silent])
def test_work_resumes_within_ten_seconds_of_a_minute_without_redis(
    running: Fleet, place: Place, outage: Callable[[Place, float], None]
) -> None:
    """B109: likewise."""
    load = Load()
    load.start()

    outage(place, 60)

    over = time.monotonic()
    all_succeed(1 + load.stop(), seconds=remaining(over))
    assert load.slowest < _SLOWEST_START
    assert [process.poll() for process in running.processes] == [None, None]
