"""Settings are read once, from the environment that is handed in; what is wrong is named with its remedy."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flowforge.errors import SettingsError
from flowforge.settings import Settings

WHOLE = {
    "DATABASE_URL": "postgresql://user:secret@host/mydb",
    "REDIS_URL": "redis://:secret@host:6379/0",
    "FLOWFORGE_NAMESPACE": "sales",
    "FLOWFORGE_MODULES": "myapp.workflows, myapp.actors",
    "FLOWFORGE_QUEUES": "cpu default",
    "FLOWFORGE_LEASE": "7.5",
    "FLOWFORGE_GRACE": "60",
    "FLOWFORGE_CANCEL_GRACE": "2.5",
    "FLOWFORGE_THREADS": "16",
    "FLOWFORGE_RUNWAY": "512",
    "FLOWFORGE_VALUE_LIMIT": "4096",
    "FLOWFORGE_IDEMPOTENCY_TTL": "3600",
}


def test_each_setting_has_a_variable() -> None:
    settings = Settings.from_env(WHOLE)

    assert settings == Settings(
        database_url="postgresql://user:secret@host/mydb",
        redis_url="redis://:secret@host:6379/0",
        namespace="sales",
        modules=("myapp.workflows", "myapp.actors"),
        queues=("cpu", "default"),
        lease=7.5,
        grace=60.0,
        cancel_grace=2.5,
        threads=16,
        runway=512,
        value_limit=4096,
        idempotency_ttl=3600.0,
    )
    assert len(WHOLE) == len(dataclasses.fields(Settings))


@pytest.mark.parametrize("environ", [{}, dict.fromkeys(WHOLE, ""), {"FLOWFORGE_LEASES": "1"}], ids=len)
def test_what_is_not_set_has_its_default(environ: dict[str, str]) -> None:
    assert Settings.from_env(environ) == Settings()


def test_the_processs_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWFORGE_THREADS", "3")

    assert Settings.from_env().threads == 3


NUMBERS = [name for name in WHOLE if name.endswith(("LEASE", "GRACE", "THREADS", "RUNWAY", "TTL"))]


@pytest.mark.parametrize("variable", NUMBERS)
@pytest.mark.parametrize("value", ["0", "-1", "ten", "1s", "nan", "inf", "-inf", "1e999"])
def test_a_number_is_positive_and_finite(variable: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({variable: value})

    assert str(caught.value) == f"{variable}={value!r}: it must be a positive number"
    assert (caught.value.name, caught.value.value) == (variable, value)


def test_what_is_required_and_missing_is_named_with_an_example() -> None:
    settings = Settings(database_url="postgresql://host/mydb")

    assert settings.require("database_url") is settings
    with pytest.raises(SettingsError, match="REDIS_URL is not set: set it, for example to redis://localhost:6379/0"):
        settings.require("database_url", "redis_url")


def test_settings_do_not_change() -> None:
    settings: Any = Settings()

    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.threads = 3


def test_settings_that_are_shown_show_no_password() -> None:
    """B093."""
    assert "secret" not in repr(Settings.from_env(WHOLE))
