"""What the stateful tests have found, each at its smallest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from flowforge import transitions
from flowforge.states import Paused, TaskState
from flowforge.transitions import Release
from tests import factories
from tests.integration.verbs import situation

if TYPE_CHECKING:
    from flowforge.db import Database


def owned_again(database: Database) -> tuple[transitions.Claim, transitions.Claim]:
    """Return two claims of one task run by the same worker: of which the first is late, and the second counts."""
    row = factories.start_single(database, attempts=3)
    (late,) = factories.claim(database, row)
    database.perform(transitions.hand_back, [Release(late.id, late.token)])
    (owned,) = factories.claim(database, factories.reload(row))
    return late, owned


def test_of_a_late_and_a_true_outcome_in_one_batch_the_late_one_is_told_first(database: Database) -> None:
    """B051: what was refused found the task run running, and history says so."""
    late, owned = owned_again(database)

    database.perform(transitions.finish, [factories.outcome(owned), factories.outcome(late)])

    row = factories.task_run(owned.run_id, "only")
    assert (row.state, factories.event_kinds(row)[-2:]) == ("succeeded", ["refused", "succeeded"])
    assert situation.broken(database) == []


@pytest.mark.parametrize(("verb", "told"), [(transitions.retry, "retried"), (transitions.hand_back, "handed_back")])
def test_of_a_late_and_a_true_release_in_one_batch_the_late_one_is_told_first(
    database: Database, verb: Any, told: str
) -> None:
    row = factories.start_single(database, attempts=3)
    (late,) = factories.claim(database, row, lease=-1)
    database.perform(transitions.expire, limit=10)
    (owned,) = factories.claim(database, factories.reload(row))

    database.perform(verb, [Release(owned.id, owned.token), Release(late.id, late.token)])

    assert (factories.reload(row).state, factories.event_kinds(row)[-2:]) == ("ready", ["refused", told])
    assert situation.broken(database) == []


def test_a_late_outcome_is_told_before_what_made_its_task_ready_again(database: Database) -> None:
    """B072: both are in one batch, and the late one found the rerun task run waiting."""
    load = situation.in_state(database, TaskState.RUNNING)
    late = situation.outcome(load)
    database.perform(transitions.finish, [late])
    situation.complete(database, factories.task_run(load.workflow_run_id, "report"))
    situation.rerun(database, load.workflow_run_id, "extract")
    (claimed,) = factories.claim(database, factories.task_run(load.workflow_run_id, "extract"))

    database.perform(transitions.finish, [factories.outcome(claimed), late])

    assert factories.reload(load).state == "ready"
    assert factories.event_kinds(load)[-3:] == ["rerun", "refused", "readied"]
    assert situation.broken(database) == []


def test_a_late_message_holds_back_no_dispatch_but_its_own(database: Database) -> None:
    """B027: the dispatch at the present token, which is paused too, is turned back only when it comes itself."""
    row = factories.start_single(database)
    late = factories.dispatch(row)
    (claimed,) = factories.claim(database, row)
    database.perform(transitions.hand_back, [Release(claimed.id, claimed.token)])
    situation.take(database)
    situation.pause(database, row, Paused.RUN)
    before = situation.picture()

    claims = database.perform(transitions.claim, [late], owner="worker-1", lease=15)

    assert claims == []
    assert situation.changed_since(before) == set()
