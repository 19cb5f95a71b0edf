"""Captum's methods by name: what each is worth on a linear function, how they draw, and what they do without limit."""

import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from memwrap import InputError, MemoryClassifier
from memwrap.attribution import METHODS, heatmaps
from memwrap.explain.attribution.methods import PassLimit, first_limit
from tests.explain.attribution.conftest import toy


def halves(model: MemoryClassifier, target: int) -> tuple[Tensor, Tensor]:
    """What the toy's logit takes of each pixel of the image (1, 2, 2) and of the sample that has all the weight."""
    own, share = model.layer.head.first.weight[target].detach().reshape(2, 1, 2, 2)
    return own, share


WHITE = 2.0  # (1 - 0.5) / 0.25


def test_integrated_gradients_of_a_linear_function_are_known(by_hand: MemoryClassifier, like_the_first: Tensor) -> None:
    (found,) = heatmaps(by_hand, like_the_first)
    own, share = halves(by_hand, found.target)
    sample = by_hand.remembered.images[0]
    assert (found.moved, found.still) == ((0,), ())
    assert_close(found.input, own * (like_the_first[0] - WHITE))
    assert_close(found.samples, (share * (sample - WHITE)).unsqueeze(0))
    assert found.at_input == pytest.approx(by_hand(like_the_first).max().item())
    bias = by_hand.layer.head.first.bias[found.target].item()
    assert found.at_baseline == pytest.approx(WHITE * (own.sum() + share.sum()).item() + bias, abs=1e-5)


@pytest.mark.parametrize("baseline", ["white", "black"])
def test_other_methods_on_a_linear_function(baseline: str, by_hand: MemoryClassifier, like_the_first: Tensor) -> None:
    found = {name: heatmaps(by_hand, like_the_first, method=name, baseline=baseline)[0] for name in METHODS}
    own, share = halves(by_hand, found["saliency"].target)
    image, sample = like_the_first[0], by_hand.remembered.images[0]
    way, sample_way = (image - WHITE, sample - WHITE) if baseline == "white" else (image + WHITE, sample + WHITE)
    for name, expected in {
        "saliency": (own.abs(), share.abs()),
        "input_x_gradient": (own * image, share * sample),
        "occlusion": (own * way, share * sample_way),  # windows of one pixel
    }.items():
        assert_close(found[name].input, expected[0])
        assert_close(found[name].samples[0], expected[1])


@pytest.mark.parametrize("method", METHODS)
def test_only_integrated_gradients_promise_to_add_up(
    method: str, remembering: MemoryClassifier, images: Tensor
) -> None:
    (found,) = heatmaps(remembering, images[:1], shown=2, method=method, baseline="blur")
    assert (found.method, found.baseline) == (method, "blur")
    assert found.input.shape == (3, 8, 8)
    assert found.samples.shape == (2, 3, 8, 8)
    assert found.input.isfinite().all()
    assert found.input.abs().sum() > 0
    assert not found.input.requires_grad
    promised = [found.steps, found.completeness_error, found.relative_error, found.converged]
    assert [value is not None for value in promised] == [method == "integrated_gradients"] * 4


@pytest.mark.parametrize("method", METHODS)
def test_any_method_explains_the_image_alone(method: str, remembering: MemoryClassifier, images: Tensor) -> None:
    (found,) = heatmaps(remembering, images[:1], samples=[[]], method=method)
    assert found.samples.shape == (0, 3, 8, 8)
    assert found.moved == ()
    assert found.input.abs().sum() > 0


@pytest.mark.parametrize("method", METHODS)
def test_how_much_runs_in_a_pass_does_not_matter(method: str, remembering: MemoryClassifier, images: Tensor) -> None:
    images.mul_(0.5)
    for at_once in (1, 20):
        few, many = (heatmaps(remembering, images[:1], shown=3, method=method, at_once=n)[0] for n in (at_once, 10_000))
        assert_close(few.input, many.input, atol=1e-5, rtol=1e-3)
        assert_close(few.samples, many.samples, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_images_may_be_made_in_inference_mode_or_learn(
    method: str, remembering: MemoryClassifier, images: Tensor
) -> None:
    expected = heatmaps(remembering, images[:1], shown=2, method=method)[0]
    with torch.inference_mode():
        made = images[:1] * 1
    learning = images[:1].clone().requires_grad_()
    for given in (made, learning):
        found = heatmaps(remembering, given, shown=2, method=method)[0]
        assert_close(found.input, expected.input, atol=0, rtol=0)
        assert not found.input.requires_grad
    assert learning.grad is None
    assert not images.requires_grad


def test_occlusion_covers_one_image_at_a_time(remembering: MemoryClassifier) -> None:
    """What a square of the image is worth, worked out by hand: windows of 2 pixels in 16, one pixel apart."""
    image = torch.randn(1, 3, 16, 16)
    remembering.remember(torch.randn(3, 3, 16, 16), [0, 1, 2])
    (found,) = heatmaps(remembering, image, method="occlusion", baseline="mean")
    falls = torch.zeros(16, 16)
    covered = torch.zeros(16, 16)
    with torch.no_grad():
        for top in range(15):
            for left in range(15):
                hidden = image.clone()
                hidden[..., top : top + 2, left : left + 2] = 0
                memory = remembering.remembered.images[list(found.moved)]
                fall = found.at_input - remembering(hidden, memory=memory)[0, found.target]
                falls[top : top + 2, left : left + 2] += fall
                covered[top : top + 2, left : left + 2] += 1
    assert_close(found.input, (falls / covered).expand(3, 16, 16), atol=1e-5, rtol=1e-3)


def test_an_unknown_method_is_refused_with_the_known_ones(remembering: MemoryClassifier, images: Tensor) -> None:
    message = "method is 'lime'; expected one of integrated_gradients, saliency, input_x_gradient, occlusion"
    with pytest.raises(InputError, match=re.escape(message)):
        heatmaps(remembering, images, method="lime")


def test_without_captum_there_is_a_word_on_what_to_install(
    remembering: MemoryClassifier, images: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(InputError, match=re.escape("heatmaps need captum, which is not installed: pip install captum")):
        heatmaps(remembering, images)


def test_captum_is_not_loaded_before_it_is_needed() -> None:
    script = "import memwrap.attribution, sys; print('captum' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class NoGradients(nn.Flatten):
    def forward(self, images: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(images) * 1


def test_an_encoder_without_gradients_is_explained_by_occlusion_alone(like_the_first: Tensor) -> None:
    model = toy(NoGradients())
    with pytest.raises(InputError, match=re.escape("use method='occlusion', which needs none")):
        heatmaps(model, like_the_first)
    assert heatmaps(model, like_the_first, method="occlusion")[0].input.abs().sum() > 0


class SmallDevice:
    """Stands before the encoder as a device would that has limit for so many images."""

    def __init__(self, model: MemoryClassifier, images: int) -> None:
        self.images, self.passes = images, list[int]()
        model.encoder.register_forward_pre_hook(self._pass)

    def _pass(self, module: nn.Module, inputs: tuple[Tensor]) -> None:
        self.passes.append(len(inputs[0]))
        if len(inputs[0]) > self.images:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than there is")


def test_a_pass_that_finds_no_room_is_repeated_with_half_of_it(remembering: MemoryClassifier, images: Tensor) -> None:
    expected = heatmaps(remembering, images[:2], shown=3, tolerance=10)
    device = SmallDevice(remembering, 40)
    remembering.remember(remembering.remembered.images, remembering.remembered.labels)
    device.passes.clear()
    found = heatmaps(remembering, images[:2], shown=3, tolerance=10)
    # 32 steps of 4 images; then 16, 8 steps to a pass, and so at once for the second image.
    single = [4, 4]  # f at both ends
    assert device.passes == [1, 1, *single, 128, 64, 32, 32, 32, 32, *single, 32, 32, 32, 32]
    for one, other in zip(found, expected, strict=True):
        assert_close(one.input, other.input)
        assert_close(one.samples, other.samples)


def test_a_step_that_finds_no_room_ends_with_a_word_on_what_to_do(
    remembering: MemoryClassifier, images: Tensor
) -> None:
    SmallDevice(remembering, 3)
    remembering.remember(remembering.remembered.images, remembering.remembered.labels, chunk_size=3)
    heatmaps(remembering, images[:1], shown=2)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        heatmaps(remembering, images[:1], shown=3)
    assert caught.value.__notes__ == ["one pass encodes 4 images here; let fewer memory samples move"]


def test_the_room_to_begin_with_shrinks_with_the_size_of_images() -> None:
    assert first_limit(torch.device("cpu"), torch.empty(1, 3, 8, 8)).images == 256
    assert first_limit(torch.device("cpu"), torch.empty(1, 3, 256, 256)).images == 16
    assert first_limit(torch.device("cpu"), torch.empty(1, 1, 2048, 2048)).images == 1
    assert first_limit(torch.device("cuda"), torch.empty(1, 3, 32, 32)).images == 1024


def test_room_counts_rows_by_their_images() -> None:
    assert PassLimit(100).run(lambda rows: rows, 9, most=32) == 11
    assert PassLimit(100).run(lambda rows: rows, 9, most=4) == 4
    assert PassLimit(5).run(lambda rows: rows, 9, most=32) == 1
