"""Runs of ours that never were: a table's own config and spreads, with a seed."""

import random

from memwrap.reproduce.published import Cell, Published, published_table


def made_up(number: Published, runs: int, generator: random.Random, shift: float = 0.0) -> list[float]:
    """Values as runs like the paper's might give."""
    if number.spread is None:
        return [number.mean] * runs
    return [generator.gauss(number.mean + shift, number.spread) for _ in range(runs)]


def made_up_table(table: str, runs: int = 5, seed: int = 0, shift: float = 0.0) -> dict[Cell, list[float]]:
    """For each cell of a table."""
    generator = random.Random(seed)
    return {cell: made_up(number, runs, generator, shift) for cell, number in published_table(table).items()}
