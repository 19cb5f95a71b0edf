"""Memory that threads share: never more than there is, and nobody waits forever."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

from memwrap.data.budget import Budget


def most_at_once(total: int, amounts: list[int]) -> list[int]:
    """The amounts that were held at the same time, in sum, whenever a thread had got its part."""
    budget, lock, held, sums = Budget(total), threading.Lock(), [0], []

    def work(amount: int) -> None:
        with budget.take(amount):
            with lock:
                held[0] += amount
                sums.append(held[0])
            time.sleep(0.005)
            with lock:
                held[0] -= amount

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, amounts))
    return sums


def test_threads_hold_no_more_than_the_total() -> None:
    sums = most_at_once(10, [3, 4, 5, 1, 9, 10, 2, 2, 2, 2] * 5)
    assert len(sums) == 50
    assert max(sums) <= 10
    assert max(most_at_once(100, [10] * 40)) > 10  # several at once


def test_more_than_the_total_is_held_alone() -> None:
    sums = most_at_once(10, [1, 50, 3, 50])
    assert max(sums) == 50


def test_a_part_is_given_back_after_an_error() -> None:
    budget = Budget(1)
    for _ in range(3):
        try:
            with budget.take(1):
                raise ZeroDivisionError
        except ZeroDivisionError:
            pass
    assert max(most_at_once(1, [1])) == 1
