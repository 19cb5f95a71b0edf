"""Tables as lists of tasks: each run once, shared between tables, with the settings of `memwrap train`."""

from dataclasses import replace
from pathlib import Path

import pytest

from memwrap.cli.train import chosen_settings
from memwrap.errors import SettingsError
from memwrap.reproduce.published import published_table, table_names
from memwrap.reproduce.tasks import TRAINING_IMAGES, Task, select_cells, split_groups
from tests.reproduce.records import tasks_of

TASK = Task("svhn", 1000, "mobilenet_v2", "memory_wrap", 100, 3)


def test_names_tell_all_and_nothing_twice() -> None:
    assert TASK.name == "svhn-1000-mobilenet_v2-memory_wrap-100-random-seed3"
    assert replace(TASK, samples=None, memory="batch").name == "svhn-all-mobilenet_v2-memory_wrap-100-batch-seed3"
    standard = Task("svhn", 1000, "mobilenet_v2", "standard", 0, 3)
    assert standard.name == "svhn-1000-mobilenet_v2-standard-seed3"


def test_all_tasks_have_different_names() -> None:
    every = {task for table in table_names() for task in tasks_of(table, range(15))}
    every |= {task for table in table_names() for task in tasks_of(table, range(15), memory="batch")}
    assert len({task.name for task in every}) == len(every)


def test_standard_is_the_same_run_however_the_others_are_trained() -> None:
    assert Task("svhn", 1000, "resnet18", "standard", 0, 0, "batch") == Task("svhn", 1000, "resnet18", "standard", 0, 0)
    paper, batch = (set(tasks_of("svhn-reduced", [0], memory=memory)) for memory in ("random", "batch"))
    assert {task.variant for task in paper & batch} == {"standard"}
    assert len(paper & batch) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "wrapped"}, "variant is 'wrapped'; expected one of"),
        ({"memory_size": 0}, "memory_size is 0 for variant memory_wrap"),
        ({"variant": "standard"}, "memory_size is 100 for variant standard"),
        ({"memory": "balanced"}, "memory is 'balanced'; expected random or batch"),
    ],
)
def test_tasks_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        replace(TASK, **changes)  # type: ignore[arg-type]


def test_sorted_tasks_of_a_group_are_adjacent_and_the_full_data_comes_last() -> None:
    tasks = [
        replace(TASK, samples=samples, memory=memory, seed=seed)
        for seed in (1, 0)
        for memory in ("random", "batch")
        for samples in (None, 5000)
    ]
    in_order = sorted(tasks)
    assert [len(group) for group in split_groups(in_order, 10)] == [2, 2, 2, 2]
    assert [task.samples for task in in_order] == [5000] * 4 + [None] * 4
    assert [task.seed for task in in_order] == [0, 1] * 4


@pytest.mark.parametrize(
    ("table", "runs"),
    [("svhn-reduced", 405), ("cinic10-more", 405), ("full", 405), ("memory-size", 540), ("parameters", 0), ("cost", 0)],
)
def test_a_table_needs_that_many_runs(table: str, runs: int) -> None:
    tasks = tasks_of(table, range(15))
    assert len(tasks) == len(set(tasks)) == runs


def test_tables_share_runs() -> None:
    reduced = {task for name in ("svhn", "cifar10", "cinic10") for task in tasks_of(f"{name}-reduced", range(3))}
    for table in ("explanations", "counterfactuals"):
        assert set(tasks_of(table, range(3))) <= reduced
    assert tasks_of("explanations", range(3)) == tasks_of("counterfactuals", range(3))
    of_size_100 = {task for task in tasks_of("memory-size", range(3)) if task.memory_size == 100}
    assert len(of_size_100) == 27
    assert of_size_100 <= reduced


def test_every_measured_cell_has_its_runs() -> None:
    groups = {task.group for table in table_names() for task in tasks_of(table, [0])}
    cells = [cell for table in table_names() for cell in published_table(table) if cell.metric.endswith("accuracy")]
    assert {Task(c.data, c.samples, c.encoder, c.variant, c.memory_size, 0).group for c in cells} == groups


def test_tables_are_narrowed() -> None:
    tasks = tasks_of(
        "svhn-reduced", [4, 7], encoders=["resnet18"], samples=[2000], variants=["only_memory", "memory_wrap"]
    )
    assert [task.name for task in tasks] == [
        f"svhn-2000-resnet18-{variant}-100-random-seed{seed}"
        for variant in ("only_memory", "memory_wrap")
        for seed in (4, 7)
    ]
    assert {cell.data for cell in select_cells("explanations", data=["svhn"])} == {"svhn"}
    two = select_cells("svhn-reduced", encoders=["resnet18", "mobilenet_v2"], samples=[1000, 5000])
    assert {(cell.encoder, cell.samples) for cell in two} == {
        (encoder, samples) for encoder in ("mobilenet_v2", "resnet18") for samples in (1000, 5000)
    }


@pytest.mark.parametrize(
    ("narrowing", "message"),
    [
        (
            {"encoders": ["googlenet"]},
            "'svhn-reduced' has no encoder 'googlenet'; it has efficientnet_b0, mob",
        ),
        ({"samples": [2000, 7]}, "no samples 7; it has 1000, 2000, 5000"),
        ({"variants": ["standard", "wrapped"]}, "no variant 'wrapped'; it has standard, only_memory"),
        ({"data": ["cifar10"]}, "no data 'cifar10'; it has svhn"),
    ],
)
def test_values_that_a_table_lacks_are_refused(narrowing: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        select_cells("svhn-reduced", **narrowing)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("narrowing", "message"),
    [
        ({"data": ["svhn", "cinic10"], "encoders": ["resnet18"]}, "no data 'cinic10' with encoder resnet18;"),
        ({"data": ["cinic10"], "encoders": ["resnet18"]}, "no data 'cinic10' with encoder resnet18;"),
        (
            {"encoders": ["mobilenet_v2", "resnet18"], "variants": ["only_memory"]},
            "no encoder 'resnet18' with variant only_memory;",
        ),
    ],
)
def test_combinations_that_a_table_lacks_are_refused(narrowing: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        select_cells("explanations", **narrowing)  # type: ignore[arg-type]


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"table 'mnist' is not known; known are svhn-reduced"):
        tasks_of("mnist", [0])


@pytest.mark.parametrize("data", ["svhn", "cifar10", "cinic10"])
@pytest.mark.parametrize("memory", ["random", "batch"])
def test_settings_are_those_of_the_command_train(data: str, memory: str) -> None:
    task = Task(data, 2000, "resnet18", "only_memory", 300, 5, memory)
    flags = {"samples": 2000, "encoder": "resnet18", "variant": "only_memory", "memory_size": 300, "remember": 300}
    assert task.settings() == chosen_settings(data, None, None, {**flags, "seed": 5, "memory": memory})[1]


def test_settings_of_standard_are_those_of_the_command_train(tmp_path: Path) -> None:
    task = Task("cifar10", None, "resnet18", "standard", 0, 5)
    flags = {"encoder": "resnet18", "variant": "standard", "seed": 5}
    assert task.settings() == chosen_settings("cifar10", None, None, flags)[1]


def test_groups_of_a_model_are_adjacent_with_the_largest_first() -> None:
    tasks = tasks_of("explanations", [0, 1], data=["svhn"])
    assert [(task.encoder, task.variant, task.samples, task.seed) for task in tasks[:7]] == [
        *(("mobilenet_v2", "only_memory", samples, seed) for samples in (5000, 2000, 1000) for seed in (0, 1)),
        ("mobilenet_v2", "memory_wrap", 5000, 0),
    ]
    assert len({task.model for task in tasks}) == 4
    assert [task.samples for task in tasks_of("full", [0], variants=["standard"])] == [None] * 9


def test_groups_are_cut_to_what_runs_side_by_side() -> None:
    tasks = tasks_of("svhn-reduced", range(5), encoders=["resnet18"], samples=[1000])
    parts = split_groups(tasks, 3)
    assert [[task.seed for task in part] for part in parts] == [[0, 1, 2], [3, 4]] * 3
    assert [task for part in parts for task in part] == tasks


def test_the_paper_s_training_sets_have_what_is_published_less_what_is_set_apart() -> None:
    """Of 73,257, 50,000 and 90,000 images; a share of memories that were trained on is taken of these."""
    assert TRAINING_IMAGES == {"svhn": 73_257 - 6000, "cifar10": 50_000 - 6000, "cinic10": 90_000 - 10}
