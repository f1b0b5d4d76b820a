"""
The verbs: one small function for each, over the statements in statements.sql. The only package that writes a state.

Each takes a psycopg2 connection. In autocommit a verb is a transaction of its own; in an open transaction it is part of
that. A row that a verb does not answer for was not the caller's any more: a value, not an error.
"""

from __future__ import annotations

from flowforge.transitions.dispatch import Dispatch, Mark, Taken, defer, resend, take
from flowforge.transitions.ending import Ending, Outcome, cut_off, finish, give_up, skip
from flowforge.transitions.leases import (
    GUARD,
    STILL_HERE,
    Claim,
    Expired,
    Late,
    Release,
    Renewal,
    claim,
    expire,
    guard,
    hand_back,
    lose,
    renew,
    retry,
)
from flowforge.transitions.moving import Held, Plan, Target, hold, move, plan
from flowforge.transitions.starting import START_RUN, NewRun, Started, forget, start_run, start_run_parameters
from flowforge.transitions.stopping import (
    Again,
    Cancelled,
    Decision,
    Rerun,
    Subject,
    cancel,
    pause,
    rerun,
    resume,
    unhold,
)

__all__ = [
    "GUARD",
    "START_RUN",
    "STILL_HERE",
    "Again",
    "Cancelled",
    "Claim",
    "Decision",
    "Dispatch",
    "Ending",
    "Expired",
    "Held",
    "Late",
    "Mark",
    "NewRun",
    "Outcome",
    "Plan",
    "Release",
    "Renewal",
    "Rerun",
    "Started",
    "Subject",
    "Taken",
    "Target",
    "cancel",
    "claim",
    "cut_off",
    "defer",
    "expire",
    "finish",
    "forget",
    "give_up",
    "guard",
    "hand_back",
    "hold",
    "lose",
    "move",
    "pause",
    "plan",
    "renew",
    "rerun",
    "resend",
    "resume",
    "retry",
    "skip",
    "start_run",
    "start_run_parameters",
    "take",
    "unhold",
]
