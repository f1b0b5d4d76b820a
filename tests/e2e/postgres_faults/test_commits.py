"""Connections are cut at the moments that matter: before a COMMIT arrives, and after it, when its reply is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from flowforge import client, db
from flowforge.chaos.proxy import Proxy
from flowforge.models import WorkflowRun
from tests.e2e.conftest import events
from tests.e2e.postgres_faults.conftest import LOST, TRAPS, says
from tests.e2e.postgres_faults.ledger import LEDGER, check, ledger

if TYPE_CHECKING:
    from pathlib import Path

    from flowforge.settings import Settings
    from tests.e2e.conftest import Fleet
    from tests.e2e.postgres_faults.conftest import Trap

NOWHERE = "/nowhere"


def test_a_workers_commit_is_lost(fleet: Fleet, network: Proxy, far: dict[str, str], file: Path) -> None:
    """B009, B098: it does not arrive, or its reply does not; the outcome is committed once, and nothing runs again."""
    fleet.scheduler()
    fleet.worker(**LEDGER, **far)

    for trap in TRAPS:
        sprung = trap(network, says("finish"), b"commit")
        run = ledger.start(str(file))
        check([run], file)
        assert sprung.is_set()
        assert events(run, "first") == ["created", "claimed", "succeeded"]
        assert events(run, "second") == ["created", "readied", "claimed", "succeeded"]


@LOST
def test_a_worker_dies_while_it_commits(
    fleet: Fleet, network: Proxy, far: dict[str, str], file: Path, trap: Trap
) -> None:
    """B043: what was committed is not run again, and what was not is, by another."""
    fleet.scheduler()
    doomed = fleet.worker(**LEDGER, **far)
    check([ledger.start(str(file))], file)
    sprung = trap(network, says("finish"), b"commit")
    network.target = NOWHERE

    run = ledger.start(str(file))
    assert sprung.wait(20)
    doomed.kill()
    fleet.worker(**LEDGER)

    check([run], file)
    lost = ["expired", "claimed"] if trap is Proxy.intercept else []
    assert events(run, "first") == ["created", "claimed", *lost, "succeeded"]


def test_a_claim_is_lost(fleet: Fleet, network: Proxy, far: dict[str, str], file: Path) -> None:
    """B098: it is made once more, on another connection, and what was given then is given again at no cost."""
    fleet.scheduler()
    fleet.worker(**LEDGER, **far)
    check([ledger.start(str(file))], file)

    for trap in TRAPS:
        sprung = trap(network, says("claim"))
        run = ledger.start(str(file))
        assert sprung.wait(20)
        check([run], file)
        assert events(run, "first") == ["created", "claimed", "succeeded"]


def test_a_publishers_commit_is_lost(fleet: Fleet, network: Proxy, far: dict[str, str], file: Path) -> None:
    """B009, B026, B027: after the push, at last by its death. Another sends what is not marked again, to no effect."""
    scheduler = fleet.start("flowforge.scheduler", **far)
    fleet.worker(**LEDGER)
    check([ledger.start(str(file))], file)

    for trap, killed in [*zip(TRAPS, (False, False), strict=True), (Proxy.intercept, True)]:
        network.stall()
        run = ledger.start(str(file))
        sprung = trap(network, says("take"), b"commit")
        network.target = NOWHERE if killed else network.target
        network.flow()
        assert sprung.wait(20)
        if killed:
            scheduler.kill()
            fleet.scheduler()
        check([run], file)
        assert events(run, "first") == ["created", "claimed", "succeeded"]


def test_a_start_whose_reply_is_lost_is_repeated_by_its_key(
    fleet: Fleet, network: Proxy, far: dict[str, str], settings: Settings, file: Path
) -> None:
    """B086: the client hears that nobody knows, and asks again."""
    fleet.scheduler()
    fleet.worker(**LEDGER)
    client.configure(replace(settings, database_url=far["DATABASE_URL"]))
    start = ledger.options(idempotency_key="one").start
    ledger.prepare(str(file))
    network.swallow(says("start_run"))

    with pytest.raises(db.GONE):
        start(str(file))
    run = start(str(file))

    check([run], file)
    assert WorkflowRun.select().count() == 1
    client.engine().database.close()
