"""The user's modules are imported in order, and the workflows at their top level are found by name."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from uuid import UUID

import dramatiq
import pytest
from dramatiq.brokers.stub import StubBroker

from flowforge.actors.registry import Registry, load
from flowforge.errors import DefinitionError, FlowForgeError, ForeignBroker
from flowforge.workflow import Definition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ID = UUID("00000000-0000-4000-8000-000000000000")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory, whose modules are forgotten after the test."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.fixture
def broker() -> Iterator[StubBroker]:
    """Dramatiq's broker for this test."""
    before, broker = dramatiq.broker.global_broker, StubBroker()
    dramatiq.set_broker(broker)
    yield broker
    dramatiq.broker.global_broker = before


def write(path: Path, text: str) -> None:
    """Write a module."""
    path.write_text(dedent(text), encoding="utf-8")


def definition(name: str, **queues: str) -> Definition[Any]:
    """Return a workflow with a task for each key, on its queue."""
    definition = Definition[Any](name)
    for key, queue in queues.items():
        definition.task(lambda: None, key=key, queue=queue)
    return definition


def test_workflows_at_the_top_level_of_the_modules_are_found(project: Path) -> None:
    write(project / "one.py", "from flowforge import Workflow\nsales = Workflow('sales')\nalso_sales = sales")
    write(project / "two.py", "from one import sales\nfrom flowforge import Workflow\nother = Workflow('other')")

    registry = load(["one", "two"])

    assert sorted(registry.workflows) == ["other", "sales"]
    assert registry.workflows["sales"] is sys.modules["one"].sales


def test_an_import_that_fails_is_told_as_it_is(project: Path) -> None:
    write(project / "broken.py", "import nothing_of_this_name")

    with pytest.raises(ModuleNotFoundError, match="nothing_of_this_name"):
        load(["broken"])


def test_a_module_that_exits_does_not_end_the_process_as_if_all_were_well(project: Path) -> None:
    """B055: it is told as what keeps a worker from starting, and is no clean exit."""
    write(project / "leaving.py", "import sys\nsys.exit(0)")

    with pytest.raises(FlowForgeError, match=r"module 'leaving' called sys.exit\(0\) while it was imported"):
        load(["leaving"])


def test_a_module_that_replaces_the_broker_is_named(project: Path, broker: StubBroker) -> None:
    write(
        project / "foreign.py",
        """
        import dramatiq
        from dramatiq.brokers.stub import StubBroker
        dramatiq.set_broker(StubBroker())
        """,
    )
    write(project / "innocent.py", "")

    with pytest.raises(ForeignBroker, match="module 'foreign' installed another Dramatiq broker") as caught:
        load(["innocent", "foreign"], broker)

    assert caught.value.module == "foreign"


def test_actors_of_the_modules_are_on_the_broker(project: Path, broker: StubBroker) -> None:
    write(project / "mail.py", "import dramatiq\n@dramatiq.actor\ndef send(): ...")

    load(["mail"], broker)

    assert list(broker.actors) == ["send"]


def test_two_workflows_of_one_name_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two workflows are named 'sales': rename one of them"):
        Registry([definition("sales"), definition("sales")])


def test_the_queues_are_those_of_the_tasks_or_the_default_one() -> None:
    registry = Registry([definition("one", a="cpu", b="io"), definition("two", a="cpu")])

    assert registry.queues == ["cpu", "io"]
    assert Registry([]).queues == ["default"]


def test_a_task_is_found_by_workflow_and_key() -> None:
    sales = definition("sales", extract="cpu")
    registry = Registry([sales])

    assert registry.task("sales", "extract") is sales.tasks["extract"]
    assert registry.task("sales", "load") is registry.task("other", "extract") is None


@pytest.mark.parametrize(
    ("workflow", "key", "inputs", "reason"),
    [
        ("sales", "load", ["day"], None),
        ("sales", "load", ["day", "batch"], None),
        ("other", "load", ["day"], "no workflow 'other' in the worker's FLOWFORGE_MODULES"),
        ("sales", "extract", ["day"], "the code's workflow 'sales' has no task 'extract'"),
        ("sales", "load", [], "the code's load() needs an argument 'day'"),
        ("sales", "load", ["day", "region"], "the code's load() takes no argument 'region'"),
        ("sales", "load", None, "its definition cannot be found"),
    ],
)
def test_a_dispatch_of_any_version_is_run_if_the_function_takes_its_inputs(
    workflow: str, key: str, inputs: list[str] | None, reason: str | None
) -> None:
    """B128, B129."""

    def load(day: int, batch: int = 500) -> None: ...

    sales = Definition[Any]("sales")
    sales.task(load, inputs={"day": 1})
    stored = None if inputs is None else {name: {"value": 1} for name in inputs}

    assert Registry([sales]).cannot_run(workflow, key, stored) == reason
