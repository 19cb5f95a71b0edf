"""Classifiers with a memory: wrapping, predicting, loading."""
