"""Seeds: one generator for each purpose, so that no random choice depends on how another was made."""

import hashlib

import torch


def derive_seed(seed: int, purpose: str, *numbers: int) -> int:
    """Derive the seed of a purpose ("batches", ...) and its counters (epoch, step)."""
    digest = hashlib.sha256(repr((seed, purpose, *numbers)).encode()).digest()
    return int.from_bytes(digest[:7], "big")  # both Python and torch accept 56 bits


def generator(seed: int, purpose: str, *numbers: int) -> torch.Generator:
    """A CPU generator with the seed of a purpose; its draws are the same on every machine."""
    return torch.Generator().manual_seed(derive_seed(seed, purpose, *numbers))
