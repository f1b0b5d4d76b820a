"""What user code calls: workflows that can be started, runs that can be waited for, deployments."""

from __future__ import annotations

from flowforge.client.deploying import deploy, ensure_stored
from flowforge.client.engine import Engine, configure, engine
from flowforge.client.inline import InlineRun
from flowforge.client.run import Run
from flowforge.client.starting import Options, start_by_name
from flowforge.client.workflow import Workflow

__all__ = [
    "Engine",
    "InlineRun",
    "Options",
    "Run",
    "Workflow",
    "configure",
    "deploy",
    "engine",
    "ensure_stored",
    "start_by_name",
]
