"""A queue of earlier encodings, as memory next to the other half of a batch, and what is compared with it."""

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from memwrap import MemoryWrap
from memwrap.nn.contrast import SCALE, contrastive_loss
from memwrap.nn.layer import first_half
from memwrap.nn.queue import EMPTY, Queue
from memwrap.nn.vote_layer import VoteLayer

LENGTH, CLASSES = 4, 3


def encodings(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, LENGTH, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def filled(size: int, used: int) -> Queue:
    queue = Queue.empty(size, LENGTH)
    queue = Queue(queue.encodings.double(), queue.labels)
    return queue.push(encodings(used, 5), torch.arange(used) % CLASSES) if used else queue


def test_the_newest_come_first_and_the_oldest_leave() -> None:
    queue = Queue.empty(5, 2)
    assert (queue.encodings.shape, queue.labels.tolist(), queue.filled.any()) == ((5, 2), [EMPTY] * 5, False)
    queue = queue.push(torch.full((2, 2), 1.0), torch.tensor([0, 1]))
    assert queue.labels.tolist() == [0, 1, EMPTY, EMPTY, EMPTY]
    queue = queue.push(torch.full((2, 2), 2.0), torch.tensor([2, 2]))
    assert queue.labels.tolist() == [2, 2, 0, 1, EMPTY]
    queue = queue.push(torch.full((3, 2), 3.0), torch.tensor([0, 1, 2]))
    assert queue.labels.tolist() == [0, 1, 2, 2, 2]
    assert queue.encodings[:, 0].tolist() == [3, 3, 3, 2, 2]
    assert queue.filled.all()
    assert len(queue.push(torch.ones(9, 2), torch.arange(9)).labels) == 5


def test_what_was_pushed_has_no_gradient() -> None:
    learning = torch.ones(2, 3, requires_grad=True)
    assert not Queue.empty(4, 3).push(2 * learning, torch.tensor([0, 1])).encodings.requires_grad


@pytest.mark.parametrize("used", [0, 1, 4, 6])
@pytest.mark.parametrize("project", [None, 3])
@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
def test_a_queue_joins_the_other_half(variant: str, project: int | None, used: int) -> None:
    """The same as a memory of the other half and of what the queue holds."""
    torch.manual_seed(0)
    layer, inputs, queue = MemoryWrap(LENGTH, CLASSES, variant, project=project).double(), encodings(7), filled(6, used)
    first, second = inputs.split(first_half(7))
    held = queue.encodings[:used]
    expected = torch.cat([layer(first, torch.cat([second, held])), layer(second, torch.cat([first, held]))])
    assert_close(layer(inputs, queue), expected)
    if used == 0:
        assert_close(layer(inputs, queue), layer(inputs, "batch"))


def test_gradients_reach_inputs_and_weights_but_not_the_queue() -> None:
    layer, queue = MemoryWrap(LENGTH, CLASSES, project=3).double(), filled(6, 3)
    inputs = encodings(6).requires_grad_()
    layer(inputs, queue).sum().backward()
    assert inputs.grad is not None
    assert bool((inputs.grad != 0).any(1).all())
    assert all(each.grad is not None and bool(each.grad.isfinite().all()) for each in layer.parameters())
    assert not queue.encodings.requires_grad


def slow_loss(vectors: Tensor, labels: list[int], others: Tensor, other_labels: list[int]) -> float:
    """The formula of the paper, one input after the other."""
    unit = lambda each: each / (each.square().sum() + 1e-6).sqrt()  # noqa: E731
    losses = []
    for row, vector in enumerate(vectors):
        keys = [(vectors[place], labels[place]) for place in range(len(vectors)) if place != row]
        keys += list(zip(others, other_labels, strict=True))
        scores = [(SCALE * float(unit(vector) @ unit(key)), label) for key, label in keys]
        total = torch.tensor([score for score, _ in scores], dtype=torch.float64).logsumexp(0)
        alike = [score for score, label in scores if label == labels[row]]
        if alike:
            losses.append(-sum(score - float(total) for score in alike) / len(alike))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("used", [0, 4, 6])
def test_the_contrastive_loss_is_that_of_a_loop(used: int) -> None:
    inputs, labels, queue = encodings(8), torch.tensor([0, 1, 0, 2, 1, 0, 1, 0]), filled(6, used)
    layer = torch.nn.Linear(LENGTH, CLASSES)
    found = contrastive_loss(layer, inputs, labels, queue)
    expected = slow_loss(inputs, labels.tolist(), queue.encodings[:used], queue.labels[:used].tolist())
    assert float(found) == pytest.approx(expected, rel=1e-6)
    if used == 0:
        assert_close(contrastive_loss(layer, inputs, labels), found)


def test_what_is_contrasted_is_the_projection() -> None:
    torch.manual_seed(0)
    layer, inputs = MemoryWrap(LENGTH, CLASSES, project=2).double(), encodings(8)
    labels, queue = torch.arange(8) % CLASSES, filled(6, 6)
    assert layer.projection is not None
    held = layer.projection(queue.encodings)
    expected = slow_loss(layer.projection(inputs), labels.tolist(), held, queue.labels.tolist())
    assert float(contrastive_loss(layer, inputs, labels, queue)) == pytest.approx(expected, rel=1e-6)
    vote = VoteLayer(LENGTH, CLASSES).double()
    assert_close(contrastive_loss(vote, inputs, labels), contrastive_loss(None, inputs, labels))


def test_inputs_that_are_alone_cost_nothing() -> None:
    inputs = encodings(3).requires_grad_()
    loss = contrastive_loss(None, inputs, torch.arange(3))
    loss.backward()
    assert float(loss) == 0
    assert inputs.grad is not None
    assert bool(inputs.grad.isfinite().all())
    alone = encodings(1).requires_grad_()
    contrastive_loss(None, alone, torch.tensor([0]), Queue.empty(2, LENGTH)).backward()
    assert bool(alone.grad.isfinite().all())  # type: ignore[union-attr]


def test_half_precision_is_contrasted_in_full() -> None:
    inputs, labels = encodings(8).bfloat16(), torch.arange(8) % 2
    found = contrastive_loss(None, inputs, labels, filled(4, 4))
    assert found.dtype == torch.float32
    assert_close(found, contrastive_loss(None, inputs.float(), labels, filled(4, 4)))
