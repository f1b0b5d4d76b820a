"""
The command line. Stored things are `<plural> <verb>`; bare verbs are the processes and what one does every day.

One thin function for each command: it reads its arguments, calls client or insights, and prints.
"""

from __future__ import annotations

from flowforge.cli.app import main

__all__ = ["main"]
