"""The next release: a task is added (check), one has another name (total), and one is gone (export)."""

from flowforge import Workflow

orders = Workflow("orders")


@orders.task
def extract() -> list[int]:
    return [1, 2, 3]


@orders.task
def check(extract: list[int]) -> bool:
    return bool(extract)


@orders.task
def clean(extract: list[int]) -> list[int]:
    return [n for n in extract if n > 1]


@orders.task
def total(clean: list[int]) -> int:
    return sum(clean)


@orders.task(after=check)
def load(total: int) -> str:
    return f"v2 {total}"
