"""Files: checkpoints, logs, locks and hashes."""
