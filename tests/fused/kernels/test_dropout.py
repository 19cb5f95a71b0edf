"""Dropout from seeds on the device."""

import torch

from tests.fused.kernels.reference import with_gradients
from tests.with_kernels import DEVICE, needs_triton


@needs_triton
def test_dropout_draws_from_its_seed() -> None:
    from memwrap.fused.kernels.dropout import dropout

    values = torch.ones(40, 50, device=DEVICE, requires_grad=True)
    seed = torch.tensor([7], device=DEVICE)
    out = dropout(values, 0.2, seed, 0)
    assert set(out.unique().tolist()) == {0.0, 1.25}
    assert 0.15 < float((out == 0).float().mean()) < 0.25
    drawn = out.detach().clone()
    seed.add_(5)  # before the backward pass: in a graph, the seed of the next step may be there
    assert torch.autograd.grad(out.sum(), values)[0].equal(drawn)
    assert not dropout(values, 0.2, seed, 0).equal(drawn)
    assert dropout(values, 0.2, torch.tensor([7], device=DEVICE), 0).equal(drawn)
    assert not dropout(values, 0.2, torch.tensor([7], device=DEVICE), 1).equal(drawn)


@needs_triton
def test_a_run_draws_what_it_draws_alone() -> None:
    from memwrap.fused.kernels.dropout import dropout

    values = torch.randn(3 * 20, 70, device=DEVICE, requires_grad=True)  # 1400 per run: no whole blocks
    seeds = torch.tensor([7, 1000, 7], device=DEVICE)
    together = with_gradients(dropout(values, 0.2, seeds, 3), values)
    alone = torch.cat([dropout(own, 0.2, seed, 3) for own, seed in zip(values.split(20), seeds.split(1), strict=True)])
    for one, other in zip(together, with_gradients(alone, values), strict=True):
        assert one.equal(other)
    kept = (together[0] != 0).split(20)
    assert kept[0].equal(kept[2])
    assert not kept[0].equal(kept[1])
