"""The client, as user code has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import flowforge

if TYPE_CHECKING:
    from collections.abc import Iterator

    from flowforge.client import Engine
    from flowforge.settings import Settings


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    """The process's engine, configured for this test's database and namespace."""
    engine = flowforge.configure(settings)
    yield engine
    engine.database.close()
