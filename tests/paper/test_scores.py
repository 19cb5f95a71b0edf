"""Memories of which as few images were trained on as in the paper, where there are fewer images than it had."""

import pytest
import torch

from memwrap.data.published import digits
from memwrap.evaluation import Encoded, drawn_scores
from memwrap.inference import encode_all
from memwrap.paper.scores import metrics_of, published_share
from memwrap.runs.training import new_training
from memwrap.seeds import generator
from memwrap.settings import Settings

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


@pytest.mark.parametrize("published", [1660, 3000, 8000])
def test_scores_are_those_of_memories_with_so_few_trained_images(published: int) -> None:
    data = digits()
    splits, trainer = new_training(data, SETTINGS)
    for _ in trainer.moments():
        pass
    model, size = trainer.model.eval(), 8
    found = metrics_of(model, data, splits, trainer.settings, published)["drawn"]
    others = splits.of(data, "rest")
    assert len(others) == 1797 - 60 - 20 - 40
    if published <= 40 + len(others):
        assert found.keys() == {"training_subset", "whole_training_set"}
        return
    subset = splits.of(data, "train")
    few = round(len(others) * 40 / (published - 40))
    assert 0 < few < 40
    chosen = torch.randperm(40, generator=generator(0, "published share"))[:few].sort().values
    images = [subset.at(chosen), others]
    source = Encoded(
        torch.cat([encode_all(model, each.images) for each in images]), torch.cat([each.labels for each in images])
    )
    judged = splits.of(data, "test")
    test = Encoded(encode_all(model, judged.images), judged.labels)
    with torch.no_grad():
        expected = drawn_scores(model.layer, test, source, size, generator(0, "evaluation", 2))
    assert found["published_share"] == expected
    assert found["published_share"] != found["whole_training_set"]
    assert found["published_share"]["drawn_from"] == few + len(others)


def test_the_paper_s_own_images_need_no_such_memories() -> None:
    data = digits()
    splits, trainer = new_training(data, SETTINGS)
    plain = metrics_of(trainer.model.eval(), data, splits, trainer.settings)
    assert plain == metrics_of(trainer.model, data, splits, trainer.settings, published_images=1717)
    assert plain["drawn"].keys() == {"training_subset", "whole_training_set"}
