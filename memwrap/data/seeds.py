"""Random numbers: one generator for each purpose, so that no choice depends on how another was made."""

import hashlib

import torch


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """A seed of its own for each purpose ("batches", ...) and whatever is counted in it (epoch, step)."""
    digest = hashlib.sha256(repr((seed, purpose, *numbers)).encode()).digest()
    return int.from_bytes(digest[:7], "big")  # what both Python and torch take


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A generator on the CPU, the same on every machine."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *numbers))
