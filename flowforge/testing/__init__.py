"""
Fixtures for the tests of those who use FlowForge: `pytest_plugins = ["flowforge.testing"]` in the topmost conftest.py.

A test's database is a copy of a template, the process's engine is configured for it while the test runs, and nothing
that was there before is touched. docs/testing.md shows how they are used.

PYTEST_DONT_REWRITE: pytest would warn in a conftest.py that imports `Worker` from here; there are no asserts.
"""

from __future__ import annotations

from flowforge.testing.clock import Clock
from flowforge.testing.databases import Servers
from flowforge.testing.fixtures import (
    flowforge_clock,
    flowforge_database,
    flowforge_servers,
    flowforge_settings,
    flowforge_template,
    flowforge_worker,
    pytest_addoption,
)
from flowforge.testing.worker import Worker

__all__ = [
    "Clock",
    "Servers",
    "Worker",
    "flowforge_clock",
    "flowforge_database",
    "flowforge_servers",
    "flowforge_settings",
    "flowforge_template",
    "flowforge_worker",
    "pytest_addoption",
]
