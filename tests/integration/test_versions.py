"""A structure is one version, whoever stores it; code starts its own version, a name the one deployed last."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from flowforge import Retry, Run, Workflow, deploy, models
from flowforge.client import Engine, start_by_name
from flowforge.errors import OptionError, UnknownWorkflow, UnstorableValue
from tests.integration.sales import DAY, define, transform

PARAMETERS = {"day": "2026-11-29", "region": "eu"}
THREADS = 8


def versions() -> dict[int, int]:
    """Return version -> number of its tasks."""
    return {row.version: row.tasks.count() for row in models.Workflow.select()}


def version_of(run: Run) -> int:
    """Return the version that a run executes."""
    version: int = models.WorkflowRun.get_by_id(run.id).workflow.version
    return version


def test_a_structure_is_stored_once(sales: Workflow[...]) -> None:
    runs = [sales.start(day=DAY), sales.start(day=DAY), define().start(day=DAY)]

    assert [version_of(run) for run in runs] == [1, 1, 1]
    assert versions() == {1: 2}


def test_a_second_structure_is_version_2_and_code_starts_its_own(sales: Workflow[...]) -> None:
    changed = define("daily-sales", "later")

    runs = [sales.start(day=DAY), changed.start(day=DAY), sales.start(day=DAY)]

    assert [version_of(run) for run in runs] == [1, 2, 1]
    assert versions() == {1: 2, 2: 3}


def test_another_process_finds_the_version_that_is_stored(engine: Engine, sales: Workflow[...]) -> None:
    sales.start(day=DAY)
    engine.versions.clear()

    assert version_of(sales.start(day=DAY)) == 1
    assert versions() == {1: 2}


def at_once(engine: Engine, call: Callable[[int], object]) -> None:
    """Make the call in eight threads at once."""
    barrier = Barrier(THREADS)

    def turn(place: int) -> None:
        with engine.database.connection_context():
            barrier.wait(30)
            call(place)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(turn, range(THREADS)))


def test_one_new_structure_from_eight_threads_at_once_is_one_version(engine: Engine) -> None:
    at_once(engine, lambda _: define().start(day=DAY))

    assert versions() == {1: 2}
    assert models.WorkflowRun.select().count() == THREADS


def test_eight_new_structures_from_eight_threads_at_once_are_eight_versions(engine: Engine) -> None:
    at_once(engine, lambda place: define("daily-sales", f"later_{place}").start(day=DAY))

    assert versions() == dict.fromkeys(range(1, THREADS + 1), 3)


def test_a_task_is_stored_as_it_is_written(sales: Workflow[...]) -> None:
    retry = Retry(attempts=5, lost=1, delay="500ms", factor=3, max_delay="1h")
    sales.task(transform, key="load", retry=retry, timeout="10m", queue="cpu", required=False)

    deploy(sales)

    row = models.Task.get(models.Task.key == "load")
    assert (row.position, row.queue, row.when, row.required) == (3, "cpu", "all_succeeded", False)
    assert (row.attempts, row.lost, row.retry_factor) == (5, 1, 3)
    assert [duration.total_seconds() for duration in (row.retry_delay, row.retry_max_delay, row.timeout)] == [
        0.5,
        3600,
        600,
    ]
    assert row.inputs == {"extract": {"task": "extract"}}
    (edge,) = models.TaskDependency.select().where(models.TaskDependency.downstream == row)
    assert edge.upstream.key == "extract"


def test_the_version_deployed_last_is_current_also_when_it_is_an_older_one(sales: Workflow[...]) -> None:
    changed = define("daily-sales", "later")
    seen = []

    for definition in (sales, changed, sales):
        deployed = deploy(definition, repository="acme/etl", ref="main", commit="f" * 40)
        seen.append((deployed.version, version_of(start_by_name("daily-sales", PARAMETERS))))

    assert seen == [(1, 1), (2, 2), (1, 1)]
    assert models.Deployment.select().where(models.Deployment.ref == "main").count() == 3


def test_a_start_from_code_deploys_nothing(sales: Workflow[...]) -> None:
    deploy(sales)

    define("daily-sales", "later").start(day=DAY)

    assert version_of(start_by_name("daily-sales", PARAMETERS)) == 1


def test_a_start_by_name_has_the_same_options(sales: Workflow[...], connection: Any) -> None:
    deploy(sales)

    options: dict[str, Any] = {"connection": connection, "idempotency_key": "key", "priority": 5, "deadline": "1h"}
    run = start_by_name("daily-sales", PARAMETERS, **options)
    connection.commit()

    row = models.WorkflowRun.get_by_id(run.id)
    assert (row.priority, (row.deadline - row.created_at).total_seconds()) == (5, 3600)
    assert sales.options(idempotency_key="key").start(day=DAY) == run


def test_a_name_that_was_not_deployed_is_unknown(sales: Workflow[...]) -> None:
    sales.start(day=DAY)
    deploy(define("weekly-sales"))

    with pytest.raises(
        UnknownWorkflow, match=r"no workflow 'daily-sales' was deployed \(did you mean 'weekly-sales'\?\): check"
    ):
        start_by_name("daily-sales", PARAMETERS)


@pytest.mark.parametrize("value", [float("nan"), "\x00"], ids=repr)
def test_parameters_given_by_name_are_checked_before_they_reach_the_database(
    sales: Workflow[...], connection: Any, value: object
) -> None:
    """B111, B112."""
    deploy(sales)

    with pytest.raises(UnstorableValue, match="parameters of workflow 'daily-sales'"):
        start_by_name("daily-sales", {"day": value}, connection=connection)


def test_a_deployment_of_a_commit_names_its_repository(sales: Workflow[...]) -> None:
    with pytest.raises(OptionError, match="repository=None: name it"):
        deploy(sales, commit="f" * 40)

    assert models.Deployment.select().count() == 0


def test_a_deployment_needs_no_user_name(sales: Workflow[...], monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid not found: 1000")

    monkeypatch.setattr("getpass.getuser", nobody)

    deploy(sales)

    assert models.Deployment.get().deployed_by.startswith("cli:")
