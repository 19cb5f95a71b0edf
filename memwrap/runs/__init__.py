"""Runs: folders that stand alone, made by training, resumed after any stop, and read by all that comes after."""
