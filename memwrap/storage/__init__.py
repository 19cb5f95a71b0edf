"""File formats: checkpoints, metric logs, validation of stored records, locks and hashes."""

from memwrap.storage.locks import exclusive, exclusive_if_free
from memwrap.storage.validation import Record, describe, parse, read_json

__all__ = ["Record", "describe", "exclusive", "exclusive_if_free", "parse", "read_json"]
