"""Tensors in, tensors out: sparse attention, the memory layer, and the memory that it reads."""

from memwrap.nn.attention import memory_vector, sparsemax
from memwrap.nn.layer import MemoryWrap, PreparedMemory, Reading
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.similarity import CosineSimilarity

__all__ = [
    "CosineSimilarity",
    "MemoryWrap",
    "PreparedMemory",
    "Reading",
    "RememberedMemory",
    "memory_vector",
    "sparsemax",
]
