"""Tensors in, tensors out: sparse attention, the layers with a memory, and the memory that they read."""

from memwrap.nn.attention import memory_vector, sparsemax
from memwrap.nn.layer import MemoryWrap
from memwrap.nn.memory import RememberedMemory
from memwrap.nn.reading import MemoryLayer, PreparedMemory, Reading
from memwrap.nn.similarity import CosineSimilarity
from memwrap.nn.vote_layer import VoteLayer
from memwrap.nn.voting import sum_by_label

__all__ = [
    "CosineSimilarity",
    "MemoryLayer",
    "MemoryWrap",
    "PreparedMemory",
    "Reading",
    "RememberedMemory",
    "VoteLayer",
    "memory_vector",
    "sparsemax",
    "sum_by_label",
]
