"""The fixtures for users' own tests leave servers and engine as they were, and work in a suite of the user's."""

# Annotations are read at run time here, as in every module that defines tasks.
import os
import subprocess
import sys
from pathlib import Path

import psycopg2
import pytest
import redis as redis_client

import flowforge
from flowforge import Settings, SettingsError, Workflow, client, db, models
from flowforge.client.engine import configured
from flowforge.embedded.servers import PostgresServer, ValkeyServer
from flowforge.testing import databases

pytest_plugins = ["flowforge.testing", "pytester"]

ROOT = Path(__file__).parents[2]

sales = Workflow("daily-sales")
sales.task(lambda: 1, key="extract")


# The database ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(2))
def test_each_test_has_a_database_of_its_own(flowforge_database: str, number: int) -> None:
    run = sales.options(priority=number).start()

    assert [(run.id, run.priority) for run in models.WorkflowRun.select()] == [(run.id, number)]
    assert databases.execute(flowforge_database, "select count(*) from flowforge.workflow_run") == 1


def test_the_engine_is_put_back(database_url: str, valkey: ValkeyServer, settings: Settings) -> None:
    mine = flowforge.configure(settings)
    others = Settings(database_url=database_url, redis_url=valkey.url)

    with pytest.raises(KeyError), configured(others) as engine:  # noqa: PT012 - what fails is the block
        assert client.engine() is engine
        assert db.proxy.obj is engine.database
        raise KeyError

    assert client.engine() is mine
    assert db.proxy.obj is mine.database


def test_nothing_is_left_on_the_servers(postgres: PostgresServer, valkey: ValkeyServer) -> None:
    with databases.template(postgres.url) as template, databases.copy(postgres.url, template) as url:
        made = {name_of(template), name_of(url)}
        assert made < names(postgres.url)
    with databases.namespace(valkey.url) as namespace, redis_client.Redis.from_url(valkey.url) as redis:
        redis.set(f"{namespace}:wake", "1")
        redis.set(f"{namespace}x", "of another")

        assert keys(valkey.url, namespace) == {f"{namespace}:wake", f"{namespace}x"}
    assert keys(valkey.url, namespace) == {f"{namespace}x"}
    assert not made & names(postgres.url)


def test_a_database_goes_even_when_something_is_connected(postgres: PostgresServer) -> None:
    with databases.template(postgres.url) as template:
        with databases.copy(postgres.url, template) as url:
            connection, name = psycopg2.connect(url), name_of(url)
        assert name not in names(postgres.url)
    connection.close()


def test_a_database_that_has_the_last_word_in_the_url_is_not_migrated(postgres: PostgresServer) -> None:
    before = names(postgres.url)

    with (
        pytest.raises(SettingsError, match=r"--flowforge-database-url='.*': name the database in its path alone"),
        databases.template(f"{postgres.url}&dbname=postgres"),
    ):
        pass

    assert names(postgres.url) == before
    assert databases.execute(postgres.url, "select to_regnamespace('flowforge')") is None


def test_what_is_no_url_is_refused_without_its_password() -> None:
    with (
        pytest.raises(SettingsError, match=r"give a URL such as postgresql://") as caught,
        databases.template("mysql://me:secret@here/orders"),
    ):
        pass

    assert "mysql://me:…@here/orders" in str(caught.value)


def name_of(url: str) -> str:
    """Return the name of the database at a URL."""
    return str(databases.execute(url, "select current_database()"))


def names(url: str) -> set[str]:
    """Return the names of the databases of a server."""
    return set(databases.execute(url, "select array_agg(datname::text) from pg_database"))


def keys(url: str, prefix: str) -> set[str]:
    """Return the keys of a server that begin so."""
    with redis_client.Redis.from_url(url) as redis:
        return {key.decode() for key in redis.scan_iter(f"{prefix}*")}


# In a test suite ------------------------------------------------------------------------------------------------------

SUITE = {
    "conftest": """
        import pytest
        from flowforge.testing import Worker, databases

        pytest_plugins = ["flowforge.testing"]

        @pytest.fixture(scope="session")
        def flowforge_template(flowforge_template):
            databases.execute(flowforge_template, "create table booking (day int)")
            return flowforge_template
        """,
    "test_flow": """
        import flowforge, pytest
        from flowforge.testing import databases

        flow = flowforge.Workflow("flow")

        @flow.task
        def book() -> int:
            STOP
            return 42

        @pytest.mark.parametrize("number", range(3))
        def test_flow(flowforge_worker, flowforge_database, number):
            databases.execute(flowforge_database, "insert into booking values (1)")
            assert databases.execute(flowforge_database, "select count(*) from booking") == 1
            flowforge_worker.serve(flow)
            run = flow.start()
            assert run.wait(timeout=30) == "succeeded"
            assert run.result(book) == 42
        """,
}


def run_suite(pytester: pytest.Pytester, *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run pytest in a process of its own, on the suite above and with what is typed at its breakpoints."""
    stop = "breakpoint()" if typed else "pass"
    pytester.makepyfile(**{name: text.replace("STOP", stop) for name, text in SUITE.items()})
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "FLOWFORGE"))}
    return subprocess.run(
        command,
        cwd=pytester.path,
        env={**environment, "PYTHONPATH": str(ROOT)},
        input=typed,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_suite_runs_on_servers_of_its_own(pytester: pytest.Pytester) -> None:
    done = run_suite(pytester)

    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_a_suite_on_given_servers_leaves_them_as_they_were(
    pytester: pytest.Pytester, database_url: str, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    databases.execute(database_url, "create table theirs as select 1 as one")
    before = names(postgres.url), keys(valkey.url, "")

    done = run_suite(
        pytester, "-n", "2", f"--flowforge-database-url={database_url}", f"--flowforge-redis-url={valkey.url}"
    )

    assert "3 passed" in done.stdout, done.stdout + done.stderr
    assert (names(postgres.url), keys(valkey.url, "")) == before
    assert databases.execute(database_url, "select count(*) from theirs") == 1
    assert databases.execute(database_url, "select count(*) from flowforge.workflow") == 0


def test_a_breakpoint_in_a_task_stops_there(
    pytester: pytest.Pytester, postgres: PostgresServer, valkey: ValkeyServer
) -> None:
    options = [f"--flowforge-database-url={postgres.url}", f"--flowforge-redis-url={valkey.url}"]

    done = run_suite(pytester, *options, "-k", "0", typed="p 'here', 6 * 7\nc\n")

    assert "return 42" in done.stdout, done.stdout + done.stderr
    assert "('here', 42)" in done.stdout
    assert "1 passed" in done.stdout


def test_a_suite_without_its_server_says_so(pytester: pytest.Pytester, valkey: ValkeyServer) -> None:
    nowhere = "--flowforge-database-url=postgresql://nobody@127.0.0.1:1/nothing"

    done = run_suite(pytester, nowhere, f"--flowforge-redis-url={valkey.url}", "-k", "0")

    assert "1 error" in done.stdout
    assert "127.0.0.1" in done.stdout
