"""A model's word on picture files: each in its turn, and the unreadable ones named among the others."""

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.testing import assert_close

import memwrap
from memwrap import InputError, MemoryClassifier, NoMemoryError
from memwrap.data import Transform
from memwrap.explain.record import PredictionRecord
from memwrap.models.loading import Model
from memwrap.models.prediction import UnreadableFile, predict_files, predict_images

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
NAMES = ("red", "green", "blue")
SHAPE = (3, 4, 4)


class MeanColour(nn.Module):
    """Encodes an image as its mean colour."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(images.mean((2, 3)))


def plain(*colours: tuple[int, int, int]) -> Tensor:
    """Images of one colour each, as the models here take them."""
    return torch.tensor(colours, dtype=torch.float32).reshape(-1, 3, 1, 1).expand(-1, *SHAPE) / 255


def dressed(model: Model) -> Model:
    model.classes = NAMES
    model.transform = Transform(SHAPE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return model.eval()


@pytest.fixture
def by_colour() -> MemoryClassifier:
    """Its logits are the memory colours summed by weight. It remembers two red samples and a green one."""
    model = dressed(memwrap.wrap(MeanColour(), "only_memory", head="linear", example=torch.zeros(2, *SHAPE)))
    with torch.no_grad():
        model.layer.head.first.weight.copy_(torch.eye(3))
        model.layer.head.first.bias.zero_()
    model.remember(plain(RED, RED, GREEN), [0, 0, 1])
    return model


@pytest.fixture
def standard() -> Model:
    return dressed(memwrap.wrap(MeanColour(), "standard", example=torch.zeros(2, *SHAPE)))


@pytest.fixture
def picture(tmp_path: Path) -> Callable[..., Path]:
    """Writes a picture of one colour, in folders as needed."""

    def write(name: str, colour: tuple[int, int, int] = RED, size: tuple[int, int] = (4, 4)) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, colour).save(path)
        return path

    return write


Picture = Callable[..., Path]


def predicted(
    path: Path,
    label: int,
    probability: float,
    uncertain: bool | None,
    decided_by: str = "head",
    other: int | None = None,
) -> dict[str, object]:
    return {
        "path": str(path),
        "prediction": label,
        "prediction_name": NAMES[label],
        "probability": pytest.approx(probability, abs=1e-5),
        "uncertain": uncertain,
        "decided_by": decided_by,
        "other_prediction": other,
        "other_prediction_name": None if other is None else NAMES[other],
    }


def test_two_pictures_by_hand(by_colour: MemoryClassifier, picture: Picture) -> None:
    """Without itself, a red sample is predicted from the other red one, and the green one from two red ones: as red."""
    assert by_colour.remembered.predictions.tolist() == [0, 0, 0]
    red, green = picture("a.png", RED), picture("b.png", GREEN)
    sure = math.e / (math.e + 2)  # logits 1, 0, 0
    assert [each.model_dump() for each in predict_files(by_colour, [red, green])] == [  # type: ignore[union-attr]
        predicted(red, 0, sure, uncertain=False),
        # Predicted green, but for the sample that counted most: the model itself predicts it as red.
        predicted(green, 1, sure, uncertain=True),
    ]


@pytest.mark.parametrize("decide", ["vote", "head"])
def test_pictures_next_to_a_memory_by_hand(decide: Literal["vote", "head"], picture: Picture) -> None:
    """The classifier's logits are the mean colour itself."""
    classifier = MeanColour()
    with torch.no_grad():
        classifier.fc.weight.copy_(torch.eye(3))
        classifier.fc.bias.zero_()
    model = dressed(memwrap.attach(classifier, decide=decide, scale=1.0, example=torch.zeros(2, *SHAPE)))
    model.remember(plain(RED, (200, 0, 0), GREEN), [0, 0, 1])
    colours = (RED, (102, 136, 0), GREEN)
    paths = [picture(f"{number}.png", colour) for number, colour in enumerate(colours)]
    found = [each.model_dump() for each in predict_files(model, paths)]  # type: ignore[union-attr]
    if decide == "vote":
        # Red has the cosines 1, 1, 0, and the weights .5, .5, 0. The second colour has .6, .6, .8, so the threshold is
        # 1/3 and the weights are 4/15, 4/15, 7/15: 8/15 for class 0, but the strongest sample and the head say 1.
        expected, others = [(0, 1.0, False), (0, 8 / 15, True), (1, 1.0, False)], (0, 1, 1)
    else:
        # Logits 1, 0, 0 and .4, .533, 0 and 0, 1, 0; of the second the vote, as above, would be 0.
        sure = math.e / (math.e + 2)
        unsure = math.exp(8 / 15) / (math.exp(0.4) + math.exp(8 / 15) + 1)
        expected, others = [(0, sure, False), (1, unsure, True), (1, sure, False)], (0, 0, 1)
    decided_by = "vote" if decide == "vote" else "classifier"
    rows = zip(paths, expected, others, strict=True)
    assert found == [predicted(path, *each, decided_by, other) for path, each, other in rows]


def test_a_memory_of_one_says_nothing_of_certainty(by_colour: MemoryClassifier, picture: Picture) -> None:
    by_colour.remember(plain(BLUE), [2])
    (prediction,) = predict_files(by_colour, [picture("a.png", RED)])
    expected = predicted(picture("a.png"), 2, math.e / (math.e + 2), uncertain=None)
    assert prediction.model_dump() == expected  # type: ignore[union-attr]


def test_a_model_without_a_memory_says_nothing_of_certainty(standard: Model, picture: Picture) -> None:
    path = picture("a.png", (10, 200, 30))
    (prediction,) = predict_files(standard, [path])
    with torch.no_grad():
        probabilities = standard(plain((10, 200, 30))).softmax(1)[0]
    assert isinstance(prediction, PredictionRecord)
    assert prediction.uncertain is None
    assert prediction.decided_by == "classifier"
    assert prediction.prediction == int(probabilities.argmax())
    assert prediction.probability == pytest.approx(float(probabilities.max()))


def test_a_class_without_a_name_is_called_by_its_number(by_colour: MemoryClassifier, picture: Picture) -> None:
    by_colour.classes = None
    assert [each.prediction_name for each in predict_files(by_colour, [picture("a.png", GREEN)])] == ["1"]  # type: ignore[union-attr]


def test_pictures_come_as_the_model_s_transform_makes_them(by_colour: MemoryClassifier, tmp_path: Path) -> None:
    """Of a broad picture the middle is seen: here green between red."""
    broad = Image.new("RGB", (12, 4), RED)
    broad.paste(GREEN, (4, 0, 8, 4))
    broad.save(tmp_path / "broad.png")
    for fit, name in (("crop", "green"), ("stretch", "red")):
        by_colour.transform = Transform(SHAPE, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), fit)
        (prediction,) = predict_files(by_colour, [tmp_path / "broad.png"])
        assert prediction.prediction_name == name  # type: ignore[union-attr]
        logits = by_colour(by_colour.transform(broad).unsqueeze(0))
        assert prediction.probability == pytest.approx(float(logits.softmax(1).max().detach()))  # type: ignore[union-attr]


def test_the_transform_s_normalisation_is_heeded(standard: Model, picture: Picture) -> None:
    standard.transform = Transform(SHAPE, (0.3, 0.5, 0.1), (0.2, 0.7, 0.4))
    (prediction,) = predict_files(standard, [picture("a.png", (10, 200, 30))])
    with torch.no_grad():
        given = (torch.tensor([10, 200, 30]) / 255 - torch.tensor([0.3, 0.5, 0.1])) / torch.tensor([0.2, 0.7, 0.4])
        expected = standard(given.reshape(1, 3, 1, 1).expand(-1, *SHAPE)).softmax(1).max()
    assert prediction.probability == pytest.approx(float(expected))  # type: ignore[union-attr]


# Which files, in which order


def test_files_and_folders_are_predicted_in_their_order(by_colour: MemoryClassifier, picture: Picture) -> None:
    last, first = picture("z.png", GREEN), picture("a.png", RED)
    inner = [picture(f"folder/{name}", GREEN) for name in ("b.png", "c/d.png", "e.png")]
    picture("folder/.hidden.png")
    results = list(predict_files(by_colour, [last, inner[0].parent, first]))
    assert [each.path for each in results] == [str(path) for path in (last, *inner, first)]
    assert [each.prediction_name for each in results] == ["green"] * 4 + ["red"]  # type: ignore[union-attr]


def test_many_files_are_predicted_as_one_by_one(by_colour: MemoryClassifier, picture: Picture) -> None:
    """More than fit into a batch, unreadable ones among them."""
    colours = [(RED, GREEN)[(number * 7 // 3) % 2] for number in range(75)]
    paths = [picture(f"{number:02}.png", colour) for number, colour in enumerate(colours)]
    for number in (0, 31, 32, 33, 74):
        paths[number].write_text("no picture")
    together = list(predict_files(by_colour, paths))
    alone = [next(predict_files(by_colour, [path])) for path in paths]
    assert [type(each) for each in together] == [type(each) for each in alone]
    for one, other in zip(together, alone, strict=True):
        if isinstance(one, PredictionRecord) and isinstance(other, PredictionRecord):
            assert (one.path, one.prediction_name, one.uncertain) == (
                other.path,
                other.prediction_name,
                other.uncertain,
            )
            assert one.probability == pytest.approx(other.probability)
        else:
            assert one == other


def test_a_batch_of_unreadable_files_does_not_end_it(by_colour: MemoryClassifier, picture: Picture) -> None:
    paths = [picture(f"{number:02}.png") for number in range(40)]
    for path in paths[:35]:
        path.write_bytes(b"")
    kinds = [type(each) for each in predict_files(by_colour, paths)]
    assert kinds == [UnreadableFile] * 35 + [PredictionRecord] * 5


def test_a_file_named_twice_is_predicted_twice(by_colour: MemoryClassifier, picture: Picture) -> None:
    path = picture("a.png")
    first, second = predict_files(by_colour, [path, path])
    assert first == second


def test_no_files_give_no_predictions(by_colour: MemoryClassifier, tmp_path: Path) -> None:
    assert list(predict_files(by_colour, [])) == []
    assert list(predict_files(by_colour, [tmp_path])) == []


def test_a_hidden_file_that_is_named_is_predicted(by_colour: MemoryClassifier, picture: Picture) -> None:
    assert [type(each) for each in predict_files(by_colour, [picture(".hidden.png")])] == [PredictionRecord]


def test_a_relative_path_is_given_back_as_it_was(
    by_colour: MemoryClassifier, picture: Picture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture("folder/a.png")
    monkeypatch.chdir(tmp_path)
    paths = [Path("folder"), Path("folder/a.png")]
    assert [each.path for each in predict_files(by_colour, paths)] == ["folder/a.png"] * 2


# What cannot be read


def text(path: Path) -> None:
    path.write_text("no picture")


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def half_a_picture(path: Path) -> None:
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[:500])


def a_link_to_nothing(path: Path) -> None:
    path.symlink_to("nowhere")


def a_link_to_a_folder(path: Path) -> None:
    path.symlink_to(path.parent.parent)


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (text, "not an image"),
        (nothing, "empty file"),
        (half_a_picture, "truncated or damaged"),
        (a_link_to_nothing, "cannot be read: No such file or directory"),
        (a_link_to_a_folder, "a link to a folder, which is not followed"),
        (a_pipe, "cannot be read: is a pipe"),  # reading it would never end
    ],
)
def test_an_unreadable_file_is_named_among_the_others(
    make: Callable[[Path], None], reason: str, by_colour: MemoryClassifier, picture: Picture
) -> None:
    before, bad, after = picture("folder/a.png"), picture("folder/b.png"), picture("folder/c.png", GREEN)
    bad.unlink()
    make(bad)
    first, second, third = predict_files(by_colour, [before.parent])
    assert (first.path, second.path, third.path) == (str(before), str(bad), str(after))
    assert isinstance(second, UnreadableFile)
    assert second.reason.startswith(reason)
    assert [first.prediction_name, third.prediction_name] == ["red", "green"]  # type: ignore[union-attr]


def test_a_path_that_leads_nowhere_is_refused_before_anything_is_predicted(
    by_colour: MemoryClassifier, picture: Picture, tmp_path: Path
) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(InputError, match=re.escape(f"{missing}: there is no such file or folder; expected images")):
        next(predict_files(by_colour, [picture("a.png"), missing]))


def test_a_model_without_memory_or_transform_is_refused(by_colour: MemoryClassifier, picture: Picture) -> None:
    by_colour.forget()
    with pytest.raises(NoMemoryError):
        list(predict_files(by_colour, [picture("a.png")]))
    by_colour.transform = None
    with pytest.raises(InputError, match="does not know how its images are normalised"):
        list(predict_files(by_colour, [picture("a.png")]))


# Images


def test_predictions_are_made_in_evaluation_mode_and_leave_the_mode(model: MemoryClassifier, images: Tensor) -> None:
    model.remember(torch.randn(6, 3, 8, 8), [0, 1, 2, 3, 0, 1])
    expected = model(images).detach().softmax(1)
    model.encoder.train()
    probabilities = predict_images(model, images).probabilities
    assert_close(probabilities, expected)
    assert not probabilities.requires_grad
    assert model.encoder.training


def test_uncertain_is_what_a_loop_over_the_inputs_finds(by_colour: MemoryClassifier) -> None:
    by_colour.remember(torch.rand(20, 3, 1, 1).expand(-1, *SHAPE), [0] * 20)
    images = torch.rand(50, 3, 1, 1).expand(-1, *SHAPE)
    uncertain = predict_images(by_colour, images).uncertain
    found = []
    for image in images:
        reading = by_colour.read(image.unsqueeze(0))
        strongest = int(reading.weights[0].argmax())
        found.append(int(by_colour.remembered.predictions[strongest]) != int(reading.logits[0].argmax()))
    assert 0 < sum(found) < 50
    assert uncertain is not None
    assert uncertain.tolist() == found
