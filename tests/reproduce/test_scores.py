"""Memories of which as few images were trained on as in the paper, where there are fewer images than it had."""

import pytest
import torch

from memwrap.data import digits, generator
from memwrap.models.evaluation import Encoded, draw_memories, drawn_scores
from memwrap.models.inference import encode_all
from memwrap.reproduce.scores import published_share, score_run
from memwrap.runs.training import new_training
from memwrap.training.settings import Settings

SETTINGS = Settings(
    encoder="tiny",
    samples=40,
    test=60,
    validation=20,
    epochs=1,
    batch_size=16,
    memory_size=8,
    remember=8,
    memory="random",
)


def test_the_share_by_hand() -> None:
    # 5000 of 67,257 images are 7.43 %, as are 723 of 723 + 9000.
    assert published_share(5000, 9000, 67_257) == 723
    assert published_share(1000, 13_000, 67_257) == 196
    assert published_share(10, 90, 100) is None, "as many as the paper has"
    assert published_share(10, 100, 100) is None
    assert published_share(10, 1, 1000) == 0


@pytest.mark.parametrize("published", [1800, 3000])
def test_scores_are_those_of_memories_with_so_few_trained_images(published: int) -> None:
    data = digits()
    splits, trainer = new_training(data, SETTINGS.replace(samples=800, epochs=2))
    for _ in trainer.run():
        pass
    model, size = trainer.model.eval(), 8
    found = score_run(model, data, splits, trainer.settings, published)["drawn"]
    subset, others = splits.of(data, "train"), splits.of(data, "rest")
    few = {1800: 734, 3000: 333}[published]  # of 800, with 917 others
    chosen = torch.randperm(800, generator=generator(0, "published share"))[:few].sort().values
    images = [subset.at(chosen), others]
    source = Encoded(
        torch.cat([encode_all(model, each.images) for each in images]), torch.cat([each.labels for each in images])
    )
    held_out = splits.of(data, "test")
    test = Encoded(encode_all(model, held_out.images), held_out.labels)
    with torch.no_grad():
        expected = drawn_scores(
            model.layer, test, source, draw_memories(len(test), source.labels, size, generator(0, "evaluation", 2))
        )
    assert found["published_share"] == expected
    assert len(set(expected["explanation_accuracy"]["repeats"])) > 1, "scores depend on the draws"
    assert found["published_share"]["drawn_from"] == few + len(others)


@pytest.mark.parametrize(("memory_size", "enough"), [(159, True), (160, False)])
def test_memories_are_not_drawn_from_few_more_images_than_they_have(memory_size: int, enough: bool) -> None:
    data = digits()
    splits, trainer = new_training(data, SETTINGS.replace(samples=200, epochs=1, memory_size=memory_size))
    assert len(splits.rest) == 1517, "of which 80 of 200 are a twentieth, as 200 of 4000 are: 1597 images"
    found = score_run(trainer.model.eval(), data, splits, trainer.settings, published_images=4000)["drawn"]
    assert ("published_share" in found) is enough


def test_the_paper_s_own_images_need_no_such_memories() -> None:
    data = digits()
    splits, trainer = new_training(data, SETTINGS)
    plain = score_run(trainer.model.eval(), data, splits, trainer.settings)
    assert plain == score_run(trainer.model, data, splits, trainer.settings, published_images=1717)
    assert plain["drawn"].keys() == {"training_subset", "whole_training_set"}
