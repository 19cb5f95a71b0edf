"""The function that is explained: the prediction's logit, with the used memory alone, and a memory for each row."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from memwrap import InputError, MemoryClassifier, NoMemoryError, StaleMemoryError, VoteLayer
from memwrap.explain.attribution.predicted_logit import PredictedLogit, predicted_logit, with_gradients
from memwrap.models.base import Origin


def the_task(
    model: MemoryClassifier, image: Tensor, shown: int | None = None, asked: list[int] | None = None
) -> PredictedLogit:
    with with_gradients(model):
        return predicted_logit(model, image, shown, asked, "samples[0]")


def test_f_is_the_logit_of_the_predicted_class(trained: tuple[MemoryClassifier, Tensor]) -> None:
    model, images = trained
    with torch.no_grad():
        for image in images[:8]:
            logits = model(image.unsqueeze(0))[0]
            for shown in (None, 3):
                task = the_task(model, image, shown)
                assert task.target == int(logits.argmax())
                assert_close(task(*task.arguments())[0], logits.max())


def test_all_used_samples_move_or_stand_still_the_strongest_first(trained: tuple[MemoryClassifier, Tensor]) -> None:
    model, images = trained
    weights = model.read(images[:1]).weights[0].detach()
    used = weights.argsort(descending=True)[: int((weights > 0).sum())].tolist()
    assert 3 < len(used) < 100
    assert the_task(model, images[0]).moved == tuple(used)
    assert the_task(model, images[0]).still == ()
    task = the_task(model, images[0], shown=3)
    assert (task.moved, task.still) == (tuple(used[:3]), tuple(used[3:]))
    assert the_task(model, images[0], shown=3, asked=[used[5], used[1]]).moved == (used[5], used[1])
    assert the_task(model, images[0], shown=1000).moved == tuple(used)
    assert the_task(model, images[0], asked=[]).still == tuple(used)


def test_of_equally_strong_samples_the_lower_index_comes_first(
    by_hand: MemoryClassifier, like_the_first: Tensor
) -> None:
    by_hand.remember(like_the_first.repeat(40, 1, 1, 1), [0] * 40)
    assert the_task(by_hand, like_the_first[0], shown=3).moved == (0, 1, 2)


def test_rows_do_not_see_each_other_nor_each_others_memory(trained: tuple[MemoryClassifier, Tensor]) -> None:
    model, images = trained
    task = the_task(model, images[0], shown=4)
    pixels, samples = torch.randn(6, 1, 8, 8), torch.randn(6, 4, 1, 8, 8)
    with with_gradients(model), torch.no_grad():
        together = task(pixels, samples)
        alone = torch.cat([task(pixels[row : row + 1], samples[row : row + 1]) for row in range(6)])
    assert_close(together, alone)
    assert together.std() > 0.01


def test_moved_samples_are_arguments_and_the_others_stay_as_remembered(
    trained: tuple[MemoryClassifier, Tensor],
) -> None:
    model, images = trained
    task = the_task(model, images[0], shown=4)
    image, samples = torch.randn(1, 1, 8, 8), torch.randn(1, 4, 1, 8, 8)
    memory = torch.cat([samples[0], model.transform(model.remembered.images[list(task.still)])])
    with torch.no_grad():
        assert_close(task(image, samples)[0], model(image, memory=memory)[0, task.target])


@pytest.mark.parametrize("project", [None, 3])
@pytest.mark.parametrize("decide", ["vote", "head"])
def test_f_of_a_vote_is_the_similarity_to_the_samples_of_the_class(decide: str, project: int | None) -> None:
    """Weighed as the image weighs them; also next to a classifier that decides."""
    layer = VoteLayer(4, 3, scale=1.0, decide=decide, project=project)
    model = MemoryClassifier(nn.Flatten(), layer, Origin("fc", 3, (1, 2, 2))).eval()
    images = torch.rand(6, 1, 2, 2)
    model.remember(torch.rand(9, 1, 2, 2), torch.arange(9) % 3)
    compared = nn.Identity() if project is None else layer.projection
    keys = compared(model.remembered.images.flatten(1))
    with torch.no_grad():
        reading = model.read(images)
        for row, image in enumerate(images):
            target = int(reading.logits[row].argmax())
            weights = reading.weights[row] * (model.remembered.labels == target)
            if not weights.any():
                weights = reading.weights[row]  # a classifier's class may have none
            for shown in (None, 2):
                task = the_task(model, image, shown)
                assert task.target == target
                cosines = nn.functional.cosine_similarity(compared(image.flatten()), keys)
                assert_close(task(*task.arguments())[0], (weights * cosines).sum(), atol=1e-5, rtol=0)
            other = torch.rand(1, 1, 2, 2)  # with the weights of the image, wherever it moves
            cosines = nn.functional.cosine_similarity(compared(other.flatten(1)), keys)
            alone = the_task(model, image, asked=[])
            assert_close(alone(other)[0], (weights * cosines).sum(), atol=1e-5, rtol=0)


def test_where_no_sample_is_of_the_class_f_is_the_similarity_to_all() -> None:
    layer = VoteLayer(4, 3, scale=1.0, decide="head")
    model = MemoryClassifier(nn.Flatten(), layer, Origin("fc", 3, (1, 2, 2))).eval()
    nn.init.constant_(layer.head.bias[2:], 100.0)
    model.remember(torch.rand(9, 1, 2, 2), torch.arange(9) % 2)
    image = torch.rand(1, 2, 2)
    task = the_task(model, image, shown=2)
    assert task.target == 2
    cosines = nn.functional.cosine_similarity(image.flatten(), model.remembered.images.flatten(1))
    with torch.no_grad():
        weights = model.read(image.unsqueeze(0)).weights[0]
        assert_close(task(*task.arguments())[0], (weights * cosines).sum(), atol=1e-5, rtol=0)


def test_pixels_of_a_memory_move_as_the_model_takes_them(by_hand: MemoryClassifier, like_the_first: Tensor) -> None:
    pixels = by_hand.transform.invert(by_hand.remembered.images)
    by_hand.remember(pixels, by_hand.remembered.labels)
    (_, samples) = the_task(by_hand, like_the_first[0]).arguments()
    assert_close(samples[0], by_hand.transform(pixels[:1]), atol=0, rtol=0)


def test_nothing_but_arguments_gets_a_gradient(remembering: MemoryClassifier, images: Tensor) -> None:
    with with_gradients(remembering):
        task = predicted_logit(remembering, images[0], 2, None, "")
        arguments = [argument.requires_grad_() for argument in task.arguments()]
        task(*arguments).sum().backward(inputs=arguments)
    assert all(argument.grad.abs().sum() > 0 for argument in arguments)
    assert remembering.remembered.images.grad is None
    assert not remembering.remembered.images.requires_grad
    assert not images.requires_grad


def test_a_model_without_memory_says_what_to_do(remembering: MemoryClassifier, images: Tensor) -> None:
    remembering.forget()
    with pytest.raises(NoMemoryError, match=re.escape("model.remember(memory_images, labels) gives it one")):
        the_task(remembering, images[0])


def test_a_stale_memory_is_refused(remembering: MemoryClassifier, images: Tensor) -> None:
    nn.init.zeros_(remembering.layer.head.first.bias)
    with pytest.raises(StaleMemoryError, match=re.escape("call model.remember(images, labels) again")):
        the_task(remembering, images[0])


BAD_SAMPLES = {
    "unused": ([0, 2], "samples[0] asks for memory sample 2, which has no weight for its image"),
    "which are used": ([1], "prediction; used are 0 of 3"),
    "beyond the memory": ([3], "samples[0] asks for memory sample 3"),
    "from the end": ([-3], "samples[0] asks for memory sample -3"),
    "twice": ([0, 0], "samples[0] is [0, 0]; expected each memory sample once"),
    "words": (["first"], "samples[0] is ['first']; expected the indices of memory samples"),
    "a number": (0, "samples[0] is 0; expected the indices of memory samples"),
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_samples_that_cannot_move_are_refused(case: str, by_hand: MemoryClassifier, like_the_first: Tensor) -> None:
    asked, message = BAD_SAMPLES[case]
    with pytest.raises(InputError, match=re.escape(message)):
        the_task(by_hand, like_the_first[0], asked=asked)


def test_indices_may_come_in_a_tensor(by_hand: MemoryClassifier, like_the_first: Tensor) -> None:
    assert the_task(by_hand, like_the_first[0], asked=torch.tensor([0])).moved == (0,)
