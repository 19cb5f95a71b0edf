"""The paper's tables: its numbers as data, and ours beside them with a verdict for each."""
