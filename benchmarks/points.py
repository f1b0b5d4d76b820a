"""What the crash and pause points cost a deployment, in which none is armed: against the cheapest of all verbs."""

from __future__ import annotations

import statistics
import timeit

from benchmarks.deployment import single, temporary_database
from flowforge import client, faults, transitions
from flowforge.models import DEFAULT_ORGANIZATION
from flowforge.transitions import Mark, Renewal

PASSINGS, CALLS, ROUNDS = 1_000_000, 500, 5
#: A verb in a transaction of its own asks three times whether anything is armed: `perform`, and around the commit.
LOOKS = 3


def main(*, rounds: int = ROUNDS) -> dict[str, float]:
    """Print and return the cost of a point, of a look whether any is armed, and theirs in a renewal of one task run."""
    point = _seconds(lambda: faults.point("renew.after_commit"), PASSINGS, rounds)
    look = _seconds(faults.armed, PASSINGS, rounds)
    with temporary_database() as settings:
        client.configure(settings)
        renewal = _a_renewal()
        database = client.engine().database
        verb = _seconds(lambda: database.perform(transitions.renew, [renewal]), CALLS, rounds)
    ratio = LOOKS * look / verb
    print(f"a point: {point * 1e9:.0f} ns; a look: {look * 1e9:.0f} ns; one renewal: {verb * 1e6:.0f} us")
    print(f"points in a renewal: {ratio:.6f} of it (medians of {rounds})")
    return {"point": point, "look": look, "ratio": ratio}


def _seconds(call: object, number: int, rounds: int) -> float:
    return statistics.median(timeit.repeat(call, number=number, repeat=rounds)) / number  # type: ignore[arg-type]


def _a_renewal() -> Renewal:
    """Start and claim a task run."""
    client.ensure_stored(single, DEFAULT_ORGANIZATION)
    single.start()
    database = client.engine().database
    dispatches = database.perform(transitions.take, "default", limit=1, after=Mark()).dispatches
    (claim,) = database.perform(transitions.claim, dispatches, owner="bench", lease=3600)
    return Renewal(claim.id, claim.token, 3600, span=3600)
