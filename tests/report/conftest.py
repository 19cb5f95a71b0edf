"""Reports that many tests look at; made once, and not to be changed."""

import pytest

from memwrap import MemoryClassifier
from tests.report import STEPS, ReportWorld, network, noise, told


@pytest.fixture(scope="session")
def reported() -> ReportWorld:
    """Six pictures, labelled and with heatmaps; some of the 30 memory images are never used."""
    return told(network(memory=30), noise(6), heatmaps=STEPS)


@pytest.fixture
def model() -> MemoryClassifier:
    """With a memory of twelve; another one for each test."""
    return network()
