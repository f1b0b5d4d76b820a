"""Orders as they were first: four tasks in a row, and one beside them."""

from flowforge import Workflow

orders = Workflow("orders")


@orders.task
def extract() -> list[int]:
    return [1, 2, 3]


@orders.task
def clean(extract: list[int]) -> list[int]:
    return [n for n in extract if n > 1]


@orders.task
def old_name(clean: list[int]) -> int:
    return sum(clean)


@orders.task
def load(old_name: int) -> str:
    return f"v1 {old_name}"


@orders.task(inputs={"rows": clean})
def export(rows: list[int]) -> int:
    return len(rows)
