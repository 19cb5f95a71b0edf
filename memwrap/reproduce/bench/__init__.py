"""`memwrap bench`: times against the published implementation and against no memory, in one run on one device."""

from memwrap.reproduce.bench.record import BenchRecord, Measurement, Skipped, read_bench
from memwrap.reproduce.bench.suite import PARTS, BenchOptions, measure

__all__ = ["PARTS", "BenchOptions", "BenchRecord", "Measurement", "Skipped", "measure", "read_bench"]
