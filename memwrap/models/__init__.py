"""Classifiers with a memory: wrapping, predicting, loading."""

from memwrap.models.classifier import MemoryClassifier
from memwrap.models.inference import encode_all, remember
from memwrap.models.loading import load
from memwrap.models.standard import StandardClassifier
from memwrap.models.wrapping import wrap

__all__ = ["MemoryClassifier", "StandardClassifier", "encode_all", "load", "remember", "wrap"]
