"""How long after a worker's death its task begins again, by default settings: kills at random moments of a lease."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from typing import TYPE_CHECKING

from benchmarks.processes import deployment
from flowforge import Run, Settings, Workflow

if TYPE_CHECKING:
    import subprocess

ROUNDS, AT_ONCE = 5, 10
_PATIENCE = 120.0

waiting = Workflow("waiting")


@waiting.task(timeout="1h")
def wait() -> None:
    """Take until somebody is killed."""
    time.sleep(600)


def main(*, rounds: int = ROUNDS) -> dict[str, float]:
    """
    Print and return the median and the worst, in seconds from the kill to the next claim.

    Once with no other process on the dead one's machine (a TMPDIR of its own), so that its lease must run out; and once
    with one, which finds its ledger.
    """
    told = {}
    for name, apart in (("alone", True), ("beside another", False)):
        seconds = [taken for number in range(rounds) for taken in _round(number, apart=apart)]
        told[f"{name}, median"], told[f"{name}, worst"] = statistics.median(seconds), max(seconds)
        print(f"{len(seconds)} kills {name}: median {statistics.median(seconds):.1f} s, worst {max(seconds):.1f} s")
    print(f"lease {Settings().lease:g} s")
    return told


def _round(seed: int, *, apart: bool) -> list[float]:
    """Let each of some workers own a task, kill them one by one, and see when a further one has claimed it."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory, deployment("benchmarks.recovery") as (_, processes):
        processes.start("flowforge.scheduler")
        owners = [
            processes.start(
                "flowforge.actors",
                FLOWFORGE_THREADS="1",
                TMPDIR=tempfile.mkdtemp(dir=directory) if apart else directory,
            )
            for _ in range(AT_ONCE)
        ]
        runs = [waiting.start() for _ in owners]
        owned = _owned(runs)
        processes.start("flowforge.actors", FLOWFORGE_THREADS="32", TMPDIR=directory)
        time.sleep(5 + dice.random() * 5)
        killed = {owner: _kill(owner, dice) for owner in owners}
        return [_claimed_after(owned[owner.pid], at) for owner, at in killed.items()]


def _kill(process: subprocess.Popen[bytes], dice: random.Random) -> float:
    time.sleep(dice.random())
    process.kill()
    return time.time()


def _owned(runs: list[Run]) -> dict[int, Run]:
    """Wait until each run has an owner of its own; return those by their process ids."""
    began, owned = time.monotonic(), dict[int, Run]()
    while len(owned) < len(runs):
        assert time.monotonic() - began < _PATIENCE, owned
        time.sleep(0.2)
        owned = {int(owner.split(":")[1]): run for run in runs if (owner := run.tasks()[0].lease_owner)}
    return owned


def _claimed_after(run: Run, at: float) -> float:
    began = time.monotonic()
    while True:
        claims = [event.at.timestamp() for event in run.events() if event.kind == "claimed"]
        if claims[-1] > at:
            return claims[-1] - at
        assert time.monotonic() - began < _PATIENCE, run
        time.sleep(0.1)
