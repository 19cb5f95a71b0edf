"""The examples in the docstrings of public functions are right."""

import doctest
from importlib import import_module

import pytest
import torch

import memwrap

MODULES = {
    "memwrap.encoders.registry": ["create", "names"],
    "memwrap.models.loading": ["load"],
    "memwrap.models.wrapping": ["wrap"],
    "memwrap.nn.attention": ["memory_vector", "sparsemax"],
    "memwrap.nn.layer": ["MemoryWrap"],
    **{f"memwrap.metrics.{name}": None for name in ("classification", "explanations", "selective")},
}


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_have_examples_that_hold(name: str) -> None:
    module = import_module(name)
    public = MODULES[name] or [each for each in memwrap.metrics.__all__ if each in vars(module) and each.islower()]
    tests = [
        test for test in doctest.DocTestFinder().find(module, globs={**vars(module), "torch": torch}) if test.examples
    ]
    assert {test.name.rpartition(".")[2] for test in tests} >= set(public)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in tests:
        assert runner.run(test).failed == 0, test.name
