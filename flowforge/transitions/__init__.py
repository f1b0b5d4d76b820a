"""
The verbs: one small function for each, over the statements in statements.sql. The only package that writes a state.

Each takes a psycopg2 connection. In autocommit a verb is a transaction of its own; in an open transaction it is part of
that. A row that a verb does not answer for was not the caller's any more: a value, not an error.
"""

from __future__ import annotations

from flowforge.transitions.dispatch import Dispatch, Mark, defer, resend, take
from flowforge.transitions.ending import Ending, Outcome, finish, skip
from flowforge.transitions.leases import Claim, Late, Release, claim, expire, guard, hand_back, renew, retry
from flowforge.transitions.moving import Held, Plan, Target, hold, move, plan
from flowforge.transitions.starting import START_RUN, NewRun, Started, forget, start_run, start_run_parameters

__all__ = [
    "START_RUN",
    "Claim",
    "Dispatch",
    "Ending",
    "Held",
    "Late",
    "Mark",
    "NewRun",
    "Outcome",
    "Plan",
    "Release",
    "Started",
    "Target",
    "claim",
    "defer",
    "expire",
    "finish",
    "forget",
    "guard",
    "hand_back",
    "hold",
    "move",
    "plan",
    "renew",
    "resend",
    "retry",
    "skip",
    "start_run",
    "start_run_parameters",
    "take",
]
