"""
Connections, transactions, and the statements kept in .sql files.

Peewee's database object is the only way to PostgreSQL for FlowForge's own work: one connection for each thread of each
process, in autocommit outside `atomic()`. A connection found lost is closed, so that the next use opens a new one.
"""

from __future__ import annotations

from flowforge.db.database import GONE, Database, connect, open_database, proxy
from flowforge.db.patience import loops
from flowforge.db.session import Session
from flowforge.db.statements import begun, fetch, load_statements

__all__ = [
    "GONE",
    "Database",
    "Session",
    "begun",
    "connect",
    "fetch",
    "load_statements",
    "loops",
    "open_database",
    "proxy",
]
