"""Real PostgreSQL and Valkey from wheels, and a supervisor of processes: for `flowforge dev`, the demo and tests."""
