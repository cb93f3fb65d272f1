"""The budget of retries."""

from __future__ import annotations

from omnirelay.client.retrying import BUDGET_MAX, EARNED_PER_CALL, RetryBudget


def spent(budget: RetryBudget) -> int:
    """How many retries there were in it."""
    count = 0
    while budget.spend():
        count += 1
    return count


def test_calls_that_work_earn_retries_up_to_a_bound() -> None:
    budget = RetryBudget()
    assert spent(budget) == BUDGET_MAX
    for _ in range(int(3 / EARNED_PER_CALL)):
        budget.earn()
    # A sum of fractions may lack the last one.
    assert spent(budget) in (2, 3)
    for _ in range(int(10 * BUDGET_MAX / EARNED_PER_CALL)):
        budget.earn()
    assert spent(budget) == BUDGET_MAX
