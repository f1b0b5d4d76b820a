"""
Redis as FlowForge uses it: the runway of dispatches, the wake list, and the Dramatiq broker over them.

Everything in it may be lost at any time: PostgreSQL knows what is owed.

Keys, under the namespace: `dispatch:<queue>` a list of encoded dispatches; `wake` a list that a publisher blocks on;
`progress:<task run>` the last word of an attempt; `dramatiq:…` the users' own actors.
"""

from __future__ import annotations

from flowforge.broker.clients import EVICTION_REMEDY, check_server, connect_redis, eviction_policy
from flowforge.broker.dramatiq_broker import DISPATCH, Broker
from flowforge.broker.runway import Progress, Runway

__all__ = [
    "DISPATCH",
    "EVICTION_REMEDY",
    "Broker",
    "Progress",
    "Runway",
    "check_server",
    "connect_redis",
    "eviction_policy",
]
