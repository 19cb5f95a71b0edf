"""Reports that many tests read, made once."""

import pytest

from memwrap import MemoryClassifier
from tests.report import STEPS, ReportWorld, make_report, network, noise


@pytest.fixture(scope="session")
def reported() -> ReportWorld:
    """Six pictures, labelled and with heatmaps; some of the 30 memory images are never used."""
    return make_report(network(memory=30), noise(6), heatmaps=STEPS)


@pytest.fixture
def model() -> MemoryClassifier:
    """With a memory of twelve; a new one for each test."""
    return network()
