"""Fingerprints: the same for the same, another for any other, whatever happens to be alike."""

import hashlib

import pytest
import torch
from torch import Tensor, tensor

from memwrap.storage.fingerprint import fingerprint

TENSORS = {"a": tensor([1.0, 2.0, 3.0, 4.0]), "b": tensor([1, 2])}


def test_a_fingerprint_by_hand() -> None:
    expected = hashlib.sha256(b'{"size": 3}' + b"\0a torch.uint8 (2, 1)\0" + bytes([7, 9]))
    assert fingerprint({"a": tensor([[7], [9]], dtype=torch.uint8)}, {"size": 3}) == expected.hexdigest()


@pytest.mark.parametrize(
    "others",
    [
        {**TENSORS, "a": tensor([1.0, 2.0, 3.0, 4.0001])},
        {**TENSORS, "a": tensor([1.0, 2.0, 4.0, 3.0])},
        {**TENSORS, "a": TENSORS["a"].reshape(2, 2)},
        {**TENSORS, "a": TENSORS["a"].double()},
        {**TENSORS, "a": TENSORS["a"].view(torch.int32)},
        {"c": TENSORS["a"], "b": TENSORS["b"]},
        {"a": TENSORS["b"], "b": TENSORS["a"]},
        {"a": TENSORS["a"]},
        {**TENSORS, "c": torch.empty(0)},
    ],
    ids=["a value", "the order", "the shape", "the precision", "the kind", "a name", "swapped", "one less", "one more"],
)
def test_any_difference_makes_another(others: dict[str, Tensor]) -> None:
    assert fingerprint(others) != fingerprint(TENSORS)


def test_what_two_tensors_hold_is_not_predicted_as_one() -> None:
    whole, parts = tensor([1, 2, 3, 4]), {"a": tensor([1, 2]), "b": tensor([3, 4])}
    assert fingerprint({"a": whole}) != fingerprint(parts)


def test_settings_count_and_their_order_does_not() -> None:
    assert fingerprint(TENSORS, {"x": 1, "y": 2}) == fingerprint(TENSORS, {"y": 2, "x": 1})
    found = {fingerprint(TENSORS, settings) for settings in (None, {}, {"x": 1}, {"x": 2}, [1, 2], [2, 1])}
    assert len(found) == 6


def test_it_does_not_matter_how_a_tensor_is_kept() -> None:
    expected = fingerprint({"a": tensor([[1.0, 3.0], [2.0, 4.0]])})
    assert fingerprint({"a": TENSORS["a"].reshape(2, 2).T}) == expected
    assert fingerprint({"a": TENSORS["a"].reshape(2, 2).T.clone().requires_grad_()}) == expected


def test_the_order_of_tensors_does_not_matter() -> None:
    assert fingerprint(dict(reversed(TENSORS.items()))) == fingerprint(TENSORS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int64, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
def test_every_kind_of_tensor_has_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    zeros, ones = torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    assert len(fingerprint({"a": zeros})) == 64
    assert (fingerprint({"a": zeros}) == fingerprint({"a": ones})) == (zeros.numel() == 0)
