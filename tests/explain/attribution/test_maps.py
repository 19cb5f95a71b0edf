"""Heatmaps: they add up, batch or not, in whatever state the model is; and what the published way does instead."""

import re
from dataclasses import replace
from typing import Literal

import captum.attr
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import memwrap
from memwrap import InputError, MemoryClassifier, Transform
from memwrap.attribution import Attribution, heatmaps
from memwrap.explain.attribution.maps import completeness
from memwrap.explain.attribution.methods import integrated_gradients
from memwrap.explain.attribution.predicted_logit import predicted_logit, with_gradients

Trained = tuple[MemoryClassifier, Tensor]


def total(found: Attribution) -> float:
    return (found.input.double().sum() + found.samples.double().sum()).item()


def assert_same(one: Attribution, other: Attribution) -> None:
    assert (one.moved, one.still, one.steps, one.target) == (other.moved, other.still, other.steps, other.target)
    assert_close(one.input, other.input)
    assert_close(one.samples, other.samples)


@pytest.mark.parametrize("baseline", ["white", "black", "mean", "blur"])
def test_attributions_add_up_to_what_they_explain(baseline: str, trained: Trained) -> None:
    model, images = trained
    for found in heatmaps(model, images[:12], baseline=baseline):
        change = found.at_input - found.at_baseline
        assert found.converged
        assert found.relative_error < 0.01
        assert abs(total(found) - change) == pytest.approx(found.completeness_error, abs=1e-6)
        assert found.relative_error == pytest.approx(found.completeness_error / max(abs(change), 1))


@pytest.mark.parametrize("variant", ["memory_wrap", "only_memory"])
@pytest.mark.parametrize("project", [None, 16])
def test_those_of_an_untrained_model_add_up_as_well(
    variant: str, project: int | None, images: Tensor, memory: Tensor, labels: Tensor
) -> None:
    model = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), variant, project=project).eval()
    model.transform = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    with torch.no_grad():  # else the logits hardly differ
        model.layer.head.second.weight.mul_(50)
    model.remember(memory, labels)
    for found in heatmaps(model, images[:3]):
        assert found.completeness_error < 0.01
        assert abs(total(found)) > 0.02


@pytest.mark.parametrize("decide", ["vote", "head"])
def test_those_of_a_vote_and_of_a_classifier_with_a_memory_add_up_as_well(
    decide: Literal["vote", "head"], images: Tensor, labels: Tensor
) -> None:
    model = memwrap.attach(memwrap.encoders.create("tiny", num_classes=4).eval(), decide=decide)
    model.transform = Transform((3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
    model.remember(torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8), labels)
    for found in heatmaps(model, images[:3], shown=2):
        assert found.converged
        assert found.relative_error < 0.01
        change = found.at_input - found.at_baseline
        assert abs(total(found) - change) == pytest.approx(found.completeness_error, abs=1e-5)
        assert found.input.abs().sum() > 0
        # Samples of other classes have no part in the score, unless there are no others.
        used = [*found.moved, *found.still]
        counted = [index for index in used if labels[index] == found.target] or used
        drawn = (found.samples.flatten(1).abs().sum(1) > 0).tolist()
        assert drawn == [index in counted for index in found.moved]


def test_both_ends_are_what_the_model_predicts_there(trained: Trained) -> None:
    """At the baseline, that is, with the image and the moved samples white, and the others as they are."""
    model, images = trained
    (found,) = heatmaps(model, images[:1], shown=3)
    remembered = remembered_inputs(model)
    white = torch.full((3, 1, 8, 8), (1 - model.transform.mean[0]) / model.transform.std[0])
    with torch.no_grad():
        assert found.at_input == pytest.approx(model(images[:1])[0, found.target].item(), abs=1e-4)
        expected = model(white[:1], memory=torch.cat([white, remembered[list(found.still)]]))[0, found.target].item()
    assert found.at_baseline == pytest.approx(expected, abs=1e-4)


def remembered_inputs(model: MemoryClassifier) -> Tensor:
    """The memory's images, which are kept as pixels, as the model takes them."""
    return model.transform(model.remembered.images)


def by_small_steps(model: MemoryClassifier, image: Tensor, found: Attribution, steps: int) -> tuple[Tensor, Tensor]:
    """Integrated gradients by the midpoint rule, one step to a pass, through the model as anybody may call it."""
    moved, still = (remembered_inputs(model)[list(indices)] for indices in (found.moved, found.still))
    image_sum, moved_sum = torch.zeros_like(image), torch.zeros_like(moved)
    white = (1 - model.transform.mean[0]) / model.transform.std[0]
    for step in range(steps):
        way = (step + 0.5) / steps
        at, samples = ((white + way * (end - white)).requires_grad_() for end in (image, moved))
        logit = model(at.unsqueeze(0), memory=torch.cat([samples, still]))[0, found.target]
        gradients = torch.autograd.grad(logit, (at, samples))
        image_sum += gradients[0] / steps
        moved_sum += gradients[1] / steps
    return image_sum * (image - white), moved_sum * (moved - white)


@pytest.mark.parametrize("shown", [None, 2])
def test_they_are_what_small_steps_one_by_one_give(shown: int | None, trained: Trained) -> None:
    model, images = trained
    (found,) = heatmaps(model, images[3:4], shown=shown, tolerance=0.001)
    expected = by_small_steps(model, images[3], found, steps=400)
    for one, other in zip((found.input, found.samples), expected, strict=True):
        assert (one - other).abs().sum() < 0.03 * other.abs().sum()


def test_a_batch_is_explained_as_its_images_one_by_one(trained: Trained) -> None:
    model, images = trained
    together = heatmaps(model, images[:4], shown=3)
    for row, found in enumerate(together):
        assert_same(found, heatmaps(model, images[row : row + 1], shown=3)[0])


def test_samples_that_stand_still_have_no_map_and_change_those_of_others(trained: Trained) -> None:
    model, images = trained
    (all_move,) = heatmaps(model, images[:1], shown=None)
    some = [[all_move.moved[4], all_move.moved[0]]]
    (some_move,) = heatmaps(model, images[:1], samples=some)
    (none_move,) = heatmaps(model, images[:1], samples=[[]])
    assert some_move.moved == tuple(some[0])
    assert set(some_move.moved) | set(some_move.still) == set(all_move.moved)
    assert (len(all_move.samples), len(some_move.samples), len(none_move.samples)) == (len(all_move.moved), 2, 0)
    assert none_move.at_input == pytest.approx(all_move.at_input, abs=1e-4)
    assert all(found.converged for found in (all_move, some_move, none_move))
    assert (all_move.input - some_move.input).abs().sum() > 0.05 * all_move.input.abs().sum()
    # Where the input is white, white samples are all it uses; without any it uses others.
    assert some_move.at_baseline == pytest.approx(all_move.at_baseline, abs=1e-4)
    assert abs(none_move.at_baseline - all_move.at_baseline) > 0.1


def test_maps_follow_the_order_in_which_samples_are_asked_for(trained: Trained) -> None:
    model, images = trained
    (found,) = heatmaps(model, images[:1], shown=2)
    (turned,) = heatmaps(model, images[:1], samples=[found.moved[::-1]])
    assert_close(turned.samples, found.samples.flip(0), atol=1e-4, rtol=1e-3)
    assert_close(turned.input, found.input, atol=1e-4, rtol=1e-3)


def test_equal_samples_have_equal_maps(trained: Trained) -> None:
    model, images = trained
    (found,) = heatmaps(model, images[:1], shown=1)
    twin = model.remembered.images[list(found.moved)]
    before = model.remembered
    try:
        model.remember(
            torch.cat([twin, before.images, twin]), torch.cat([before.labels[:1], before.labels, before.labels[:1]])
        )
        (found,) = heatmaps(model, images[:1], shown=None)
        places = [found.moved.index(0), found.moved.index(len(model.remembered) - 1)]
        assert_close(found.samples[places[0]], found.samples[places[1]], atol=1e-5, rtol=1e-3)
        assert found.samples[places[0]].abs().sum() > 0
    finally:
        model.restore(before)


def test_the_way_back_has_the_opposite_attributions(trained: Trained) -> None:
    model, images = trained
    with with_gradients(model):
        task = predicted_logit(model, images[0], None, [], "")
        there = predicted_logit(model, images[1], None, [], "")
        forth = integrated_gradients(task, (images[1:2],), 64, 64)[0]
        # The same function, begun at the other end.
        back = integrated_gradients(replace(task, image=there.image), (images[:1],), 64, 64)[0]
    assert_close(forth, -back, atol=1e-4, rtol=1e-3)


def published_error(model: MemoryClassifier, image: Tensor, steps: int, rows: int | None) -> float:
    """The relative completeness error as the published script calls captum.

    One memory (m, C, H, W) of the used samples goes with the image, both begin at 1.0, and the steps share passes.
    """
    with torch.no_grad():
        reading = model.read(image)
    used, target = remembered_inputs(model)[reading.weights[0] > 0], int(reading.logits.argmax())

    def forward(images: Tensor, memory: Tensor) -> Tensor:
        return model(images, memory=memory)[:, target]

    attributions = captum.attr.IntegratedGradients(forward).attribute(
        (image, used), baselines=(1.0, 1.0), n_steps=steps, internal_batch_size=rows
    )
    with torch.no_grad():
        change = forward(image, used) - forward(torch.ones_like(image), torch.ones_like(used))
    return completeness(attributions, change.item())[1]


def test_the_published_way_mixes_the_steps_of_a_path_and_does_not_add_up(trained: Trained) -> None:
    model, images = trained
    found = heatmaps(model, images, shown=None)
    ours = sum(each.relative_error < 0.01 for each in found)
    published = sum(published_error(model, image.unsqueeze(0), 40, None) < 0.01 for image in images)
    one_step_to_a_pass = sum(published_error(model, image.unsqueeze(0), 40, 1) < 0.01 for image in images[:6])
    assert ours == 16
    assert published <= 4
    assert one_step_to_a_pass >= 4  # so it is not for want of steps


def test_steps_are_doubled_until_the_tolerance_or_the_most_is_reached(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, images = trained
    tried: list[int] = []

    def counting(task: object, baselines: object, steps: int, rows: int) -> object:
        tried.append(steps)
        return integrated_gradients(task, baselines, steps, rows)

    monkeypatch.setattr("memwrap.explain.attribution.maps.integrated_gradients", counting)
    (found,) = heatmaps(model, images[:1], tolerance=1e-9, max_steps=200)
    assert tried == [32, 64, 128, 200]
    assert (found.steps, found.converged) == (200, False)
    tried.clear()
    (found,) = heatmaps(model, images[:1], tolerance=0.5)
    assert (tried, found.steps, found.converged) == ([32], 32, True)
    assert heatmaps(model, images[:1], max_steps=5)[0].steps == 5


def test_few_steps_suffice_for_most_images(trained: Trained) -> None:
    """By Gauss and Legendre's rule; the sums that captum has beside it leave a few per cent."""
    model, images = trained
    assert sum(bool(found.converged) for found in heatmaps(model, images, max_steps=32)) >= 8


def test_a_change_below_one_counts_as_one() -> None:
    attributions = (torch.tensor([0.3]), torch.tensor([0.1, 0.1]))
    assert completeness(attributions, 0.4) == pytest.approx((0.1, 0.1))
    assert completeness(attributions, -4.5) == pytest.approx((5.0, 5 / 4.5))


def test_progress_is_reported_after_each_image(remembering: MemoryClassifier, images: Tensor) -> None:
    told: list[tuple[int, int]] = []
    heatmaps(remembering, images[:3], method="saliency", progress=lambda done, all_: told.append((done, all_)))
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_the_model_is_left_as_it_was(remembering: MemoryClassifier, images: Tensor) -> None:
    expected = heatmaps(remembering, images[:1])[0]
    remembering.train()
    remembering.encoder.features[0].eval()
    remembering.layer.head.first.weight.requires_grad_(False)
    modes = [module.training for module in remembering.modules()]
    flags = [parameter.requires_grad for parameter in remembering.parameters()]
    found = heatmaps(remembering, images[:1])[0]
    with pytest.raises(InputError):
        heatmaps(remembering, images[:1], samples=[[99]])
    assert [module.training for module in remembering.modules()] == modes
    assert [parameter.requires_grad for parameter in remembering.parameters()] == flags
    assert all(parameter.grad is None for parameter in remembering.parameters())
    assert_same(found, expected)
    remembering.eval()(images)  # its memory is not stale


@pytest.mark.parametrize(
    "context",
    [torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_the_surroundings_do_not_matter(context: object, remembering: MemoryClassifier, images: Tensor) -> None:
    expected = heatmaps(remembering, images[:1])[0]
    with context:
        found = heatmaps(remembering, images[:1].clone())[0]
        assert_close(found.input, expected.input, atol=0, rtol=0)
        assert_close(found.samples, expected.samples, atol=0, rtol=0)


def test_a_model_in_double_precision_is_explained_in_it(remembering: MemoryClassifier, images: Tensor) -> None:
    expected = heatmaps(remembering, images[:1])[0]
    found = heatmaps(remembering.double(), images[:1].double())[0]
    assert found.input.dtype == torch.float64
    assert_close(found.input.float(), expected.input, atol=1e-4, rtol=1e-3)


BAD = {
    "too few lists": ({"samples": [[0]]}, "samples holds 1 lists but there are 5 images; each needs one"),
    "the last image's sample": ({"samples": [[], [], [], [], [77]]}, "samples[4] asks for memory sample 77"),
    "shown": ({"shown": 0}, "shown is 0; expected at least 1"),
    "max_steps": ({"max_steps": 1.5}, "max_steps is a float; expected a whole number"),
    "at_once": ({"at_once": 0}, "at_once is 0; expected at least 1"),
    "tolerance": ({"tolerance": 0}, "tolerance is 0; expected a number above 0"),
    "tolerance in words": ({"tolerance": "1%"}, "tolerance is '1%'; expected a number above 0"),
    "no tolerance": ({"tolerance": float("nan")}, "tolerance is nan; expected a number above 0"),
    "baseline": ({"baseline": "grey"}, "baseline is 'grey'; expected one of white, black, mean, blur"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_used_is_refused_before_any_work(
    case: str, remembering: MemoryClassifier, images: Tensor
) -> None:
    options, message = BAD[case]
    told: list[int] = []
    with pytest.raises(InputError, match=re.escape(message)):
        heatmaps(remembering, images, progress=lambda done, _: told.append(done), **options)
    assert told == []


@pytest.mark.parametrize("option", ["baseline", "method"])
def test_options_are_looked_at_before_the_model_is_asked(
    option: str, remembering: MemoryClassifier, images: Tensor
) -> None:
    remembering.forget()
    with pytest.raises(InputError, match=re.escape(f"{option} is 'none'; expected one of")):
        heatmaps(remembering, images, **{option: "none"})


def test_a_single_image_is_refused_with_what_to_do(remembering: MemoryClassifier, images: Tensor) -> None:
    with pytest.raises(InputError, match=re.escape("for a single image give image.unsqueeze(0)")):
        heatmaps(remembering, images[0])


def test_models_without_a_memory_or_precision_are_refused(remembering: MemoryClassifier, images: Tensor) -> None:
    standard = memwrap.wrap(memwrap.encoders.create("tiny", num_classes=4), "standard").eval()
    with pytest.raises(InputError, match=re.escape("model is a StandardClassifier; expected a MemoryClassifier")):
        heatmaps(standard, images)
    with pytest.raises(InputError, match=re.escape("model is in torch.float16, too coarse to follow a path")):
        heatmaps(remembering.half(), images.half())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_they_are_the_same(trained: Trained) -> None:
    model, images = trained
    expected = heatmaps(model, images[:3])
    try:
        found = heatmaps(model.cuda(), images[:3].cuda())
    finally:
        model.cpu()
    for one, other in zip(found, expected, strict=True):
        assert one.input.is_cuda
        assert (one.moved, one.converged) == (other.moved, True)
        assert (one.input.cpu() - other.input).abs().sum() < 0.05 * other.input.abs().sum()
