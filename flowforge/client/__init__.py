"""What user code calls: workflows that can be started, runs that can be waited for, deployments."""

from __future__ import annotations

from flowforge.client.decisions import pause, resume
from flowforge.client.deploying import deploy, ensure_stored
from flowforge.client.engine import Engine, configure, engine
from flowforge.client.guarding import guard, guard_async
from flowforge.client.inline import InlineRun
from flowforge.client.moving import Move, move
from flowforge.client.principal import principal
from flowforge.client.run import Run
from flowforge.client.starting import Options, Prepared, start_by_name
from flowforge.client.workflow import Workflow

__all__ = [
    "Engine",
    "InlineRun",
    "Move",
    "Options",
    "Prepared",
    "Run",
    "Workflow",
    "configure",
    "deploy",
    "engine",
    "ensure_stored",
    "guard",
    "guard_async",
    "move",
    "pause",
    "principal",
    "resume",
    "start_by_name",
]
