"""A run's folder: it appears whole or not at all, is never written over, and says in words what is wrong with it."""

import json
import math
import os
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

import memwrap
from memwrap.data import DataSet, digits
from memwrap.errors import LoadError, MemwrapWarning, RunError, SaveError
from memwrap.runs.data import data_of
from memwrap.runs.run import open_run, refuse_if_taken
from memwrap.runs.training import begin, resume
from memwrap.storage import checkpoint
from memwrap.training.settings import SIZE_LIMIT, Settings
from tests.runs.test_kill import processes
from tests.sealing import REMOVED, edit, seal

SETTINGS = Settings(
    encoder="tiny", samples=32, test=60, validation=20, epochs=2, batch_size=16, memory_size=8, remember=10
)

TEXTS = ("run.json", "splits.json", "model.json")


@pytest.fixture(scope="module")
def data() -> DataSet:
    return digits()


@pytest.fixture(scope="module")
def originals(data: DataSet, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An unfinished run, of two steps, and a finished one; not to be changed."""
    place = tmp_path_factory.mktemp("runs")
    steps = iter([False, True])
    begin(place / "unfinished", data, SETTINGS, "default").train(stop=lambda: next(steps))
    begin(place / "finished", data, SETTINGS, "default").train()
    return {name: place / name for name in ("unfinished", "finished")}


@pytest.fixture(params=["unfinished", "finished"])
def run(request: pytest.FixtureRequest, originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals[request.param], tmp_path / request.param))


@pytest.fixture
def unfinished(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["unfinished"], tmp_path / "run"))


@pytest.fixture
def finished(originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals["finished"], tmp_path / "run"))


def use(path: Path, data: DataSet) -> None:
    """All that may be done with a run; that it is finished, or not finished, is no fault."""
    run = open_run(path)
    for act in (lambda: run.splits, run.model, lambda: resume(run, data)):
        try:
            act()
        except RunError as error:
            if "the run is finished" not in str(error) and "the run is not finished" not in str(error):
                raise


def contents(place: Path) -> dict[str, bytes]:
    """All files at this place and below, by their relative names."""
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


# What is there when a run begins


def test_a_run_comes_back_as_it_was_begun(data: DataSet, tmp_path: Path) -> None:
    begun = begin(tmp_path / "run", data, SETTINGS, "some recipe").run
    opened = open_run(tmp_path / "run")
    assert opened.record == begun.record
    assert opened.splits.content() == begun.splits.content()
    assert type(opened.settings) is type(begun.settings)
    assert (opened.record.recipe, opened.record.data.source, opened.classes) == (
        "some recipe",
        "digits",
        tuple("0123456789"),
    )


def test_a_run_that_has_just_begun_holds_a_whole_model(data: DataSet, tmp_path: Path) -> None:
    begun = begin(tmp_path / "run", data, SETTINGS, "default")
    assert {name.split(".")[0] for name in contents(tmp_path / "run")} == {
        "run",
        "splits",
        "model",
        "weights",
        "probe",
        "optimizer",
    }
    loaded = memwrap.load(tmp_path / "run").state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in begun.model.state_dict().items())
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_an_empty_folder_is_trained_into_and_parents_are_made(data: DataSet, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "new" / "parents" / "run"):
        begin(path, data, SETTINGS, "default")
        open_run(path)


def taken_by_a_run(path: Path, data: DataSet) -> None:
    begin(path, data, SETTINGS, "default")


def taken_by_files(path: Path, data: DataSet) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def taken_by_a_hidden_file(path: Path, data: DataSet) -> None:
    path.mkdir()
    (path / ".git").write_text("mine")


def taken_by_a_model(path: Path, data: DataSet) -> None:
    checkpoint.write(path, {}, {})


def taken_by_a_file(path: Path, data: DataSet) -> None:
    path.write_text("mine")


@pytest.mark.parametrize(
    ("take", "message"),
    [
        (taken_by_a_run, "holds a run already; continue it with --resume"),
        (taken_by_files, "exists and is not a run of memwrap"),
        (taken_by_a_hidden_file, "exists and is not a run of memwrap"),
        (taken_by_a_model, "exists and is not a run of memwrap"),
        (taken_by_a_file, "exists and is not a run of memwrap"),
    ],
)
def test_what_holds_anything_is_refused_and_left_as_it_is(
    take: Any, message: str, data: DataSet, tmp_path: Path
) -> None:
    path = tmp_path / "run"
    take(path, data)
    before = contents(tmp_path)
    with pytest.raises(RunError, match=re.escape(f"{path}: {message}")):
        refuse_if_taken(path)
    with pytest.raises(RunError, match=re.escape(message)):
        begin(path, data, SETTINGS, "default")
    assert contents(tmp_path) == before


def test_the_working_directory_itself_is_refused(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=re.escape(".: has no name")):
        begin(Path(), data, SETTINGS, "default")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_begun_in_the_meantime_is_left_as_it_is(
    data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = tmp_path / "run", checkpoint.write
    begin(tmp_path / "quicker", data, SETTINGS, "the quicker one")

    def write_and_be_overtaken(*arguments: Any) -> None:
        write(*arguments)
        (tmp_path / "quicker").rename(path)

    monkeypatch.setattr(checkpoint, "write", write_and_be_overtaken)
    with pytest.raises(RunError, match="another run has been started here in the meantime"):
        begin(path, data, SETTINGS, "the slower one")
    assert open_run(path).record.recipe == "the quicker one"
    assert list(tmp_path.iterdir()) == [path]


def test_of_two_that_begin_a_run_at_once_one_is_refused(data: DataSet, tmp_path: Path) -> None:
    def attempt(recipe: str) -> str:
        try:
            begin(tmp_path / "run", data, SETTINGS, recipe)
        except RunError as error:
            return str(error)
        return recipe

    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(attempt, ("one", "two")))
    assert open_run(tmp_path / "run").record.recipe in outcomes
    assert sum("run" in outcome for outcome in outcomes) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_what_a_process_left_that_was_killed_while_it_began_is_removed(data: DataSet, tmp_path: Path) -> None:
    ours, others = ".run.0123456789abcdef.partial", (".runs.0123456789abcdef.partial", ".run.partial")
    for name in (ours, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("half")
    begin(tmp_path / "run", data, SETTINGS, "default")
    assert {path.name for path in tmp_path.iterdir()} == {"run", *others}


def test_a_place_that_cannot_be_written_to_is_named(data: DataSet, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=re.escape(f"{tmp_path / 'file' / 'run'}: cannot be written")):
        begin(tmp_path / "file" / "run", data, SETTINGS, "default")


# Locks


def hold(path: Path, ready: Connection) -> None:
    """Keep the lock until the process ends."""
    with open_run(path).locked():
        ready.send(True)
        signal.pause()


@pytest.fixture
def other_process(unfinished: Path) -> Iterator[Any]:
    """Another process, which is training in the folder."""
    here, there = processes.Pipe()
    process = processes.Process(target=hold, args=(unfinished, there))
    process.start()
    there.close()
    here.recv()
    yield process
    process.kill()
    process.join()


def test_while_a_process_trains_no_other_does_and_its_lock_falls_when_it_is_killed(
    unfinished: Path, data: DataSet, other_process: Any
) -> None:
    begun = resume(open_run(unfinished), data)
    before = contents(unfinished)
    with pytest.raises(RunError, match=re.escape(f"{unfinished}: another process is training here")):
        begun.train()
    assert contents(unfinished) == before
    os.kill(other_process.pid, signal.SIGKILL)
    other_process.join()
    assert begun.train()


def test_a_lock_is_given_back(unfinished: Path, data: DataSet) -> None:
    assert not resume(open_run(unfinished), data).train(stop=lambda: True)
    assert resume(open_run(unfinished), data).train()


def test_two_of_one_process_do_not_train_in_a_folder_either(unfinished: Path) -> None:
    first, second = open_run(unfinished), open_run(unfinished)
    with first.locked(), pytest.raises(RunError, match="another process is training here"), second.locked():
        pass


def test_a_folder_that_is_gone_is_named(unfinished: Path, data: DataSet) -> None:
    begun = resume(open_run(unfinished), data)
    shutil.rmtree(unfinished)
    with pytest.raises(RunError, match=re.escape(f"{unfinished}: cannot be trained in")):
        begun.train()


# What saves that were cut off have left


def test_going_on_removes_what_a_killed_process_has_left(unfinished: Path, data: DataSet) -> None:
    ours = [
        "weights.0123456789abcdef.safetensors",
        "optimizer.0123456789abcdef.safetensors",
        ".model.json.0123456789abcdef.partial",
        ".metrics.jsonl.0123456789abcdef.partial",
        ".weights.0123456789abcdef.safetensors.0123456789abcdef.partial",
    ]
    mine = ["notes.txt", ".notes.partial", "data.safetensors"]
    for name in ours + mine:
        (unfinished / name).write_text("half")
    resume(open_run(unfinished), data).train()
    assert not set(ours) & contents(unfinished).keys()
    assert set(mine) <= contents(unfinished).keys()
    open_run(unfinished).model()


# Damage


def test_runs_without_damage_are_used(originals: dict[str, Path], data: DataSet) -> None:
    resume(open_run(originals["unfinished"]), data)
    open_run(originals["finished"]).model()
    for path in originals.values():
        use(path, data)


def test_what_is_no_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(RunError, match=re.escape(f"{path}: is not a run, as it has no run.json")):
            open_run(path)


RUBBISH = {
    "empty": b"",
    "no text": b"\xff\xfe\x00\x01",
    "zeros": bytes(3000),
    "a list": b"[1, 2]",
    "null": b"null",
    "a number": b"1",
    "another program's": b'{"moREMOVEDtype": "vit"}',
    "nested too deep": b"[" * 100_000,
    "an object nested too deep": b'{"a":' * 100_000,
    "half a character": b'{"format": "memwrap run\xc3',
}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("rubbish", RUBBISH)
def test_rubbish_instead_of_a_text_is_named(name: str, rubbish: str, run: Path, data: DataSet) -> None:
    (run / name).write_bytes(RUBBISH[rubbish])
    with pytest.raises(RunError, match=r"damaged|expected 'memwrap run'|holds a|is missing"):
        use(run, data)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_missing_is_named(name: str, run: Path, data: DataSet) -> None:
    (run / name).unlink()
    with pytest.raises(RunError, match=re.escape(name)):
        use(run, data)


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_that_is_cut_off_anywhere_is_named(name: str, run: Path, data: DataSet) -> None:
    content = (run / name).read_bytes()
    for length in range(0, len(content), len(content) // 37):
        (run / name).write_bytes(content[:length])
        with pytest.raises(RunError, match=re.escape(name)):
            use(run, data)


PARTS = {"unfinished": ("weights", "optimizer"), "finished": ("weights", "probe", "memory")}


@pytest.mark.parametrize(("kind", "part"), [(kind, part) for kind, parts in PARTS.items() for part in parts])
@pytest.mark.parametrize("damage", ["missing", "cut off", "empty", "a byte changed", "longer", "a folder", "another"])
def test_a_damaged_part_is_named(
    kind: str, part: str, damage: str, originals: dict[str, Path], tmp_path: Path, data: DataSet
) -> None:
    path = Path(shutil.copytree(originals[kind], tmp_path / kind))
    (file,) = path.glob(f"{part}.*.safetensors")
    content = file.read_bytes()
    file.unlink()
    if damage == "a folder":
        file.mkdir()
    elif damage != "missing":
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        others = {"cut off": content[:-9], "empty": b"", "a byte changed": changed, "longer": content + b"\0"}
        pattern = "optimizer.*" if part == "weights" else "weights.*"
        another = next(path.glob(pattern), None) or next(path.glob("probe.*"))
        file.write_bytes({**others, "another": another.read_bytes()}[damage])
    with pytest.raises(RunError, match=re.escape(file.name)):
        use(path, data)


WRONG = [REMOVED, None, 7, -1, 0.5, 10**30, "x", "", [], ["x"], [None], {}, {"x": 1}, True]


def fields_of(content: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The keys that lead to every field of an object, and to the objects themselves."""
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from fields_of(value, (*above, key))


@pytest.mark.filterwarnings("ignore::memwrap.MemwrapWarning")
@settings(max_examples=150)
@given(
    kind=st.sampled_from(["unfinished", "finished"]),
    name=st.sampled_from(TEXTS),
    field=st.integers(0, 99),
    wrong=st.sampled_from(WRONG),
)
def test_whatever_a_field_holds_the_run_is_used_or_refused_with_a_reason(
    kind: str, name: str, field: int, wrong: Any, originals: dict[str, Path], data: DataSet
) -> None:
    path = originals[kind]
    good = contents(path)  # of all files: one that is no longer listed is removed as a leftover
    fields = list(fields_of(json.loads(good[name])))
    edit(path / name, list(fields[field % len(fields)]), wrong)
    try:
        use(path, data)
    except RunError:
        pass
    finally:
        for each, content in good.items():
            (path / each).write_bytes(content)


def reverse_classes(content: dict[str, Any]) -> None:
    content["classes"].reverse()


def change_seed(content: dict[str, Any]) -> None:
    content["settings"]["seed"] += 1


def exchange_splits(content: dict[str, Any]) -> None:
    """Test images become training images, and the other way round."""
    content["train"][:5], content["test"][:5] = content["test"][:5], content["train"][:5]


EDITS = [("run.json", reverse_classes), ("run.json", change_seed), ("splits.json", exchange_splits)]


@pytest.mark.parametrize(("name", "change"), EDITS)
def test_an_edit_that_makes_sense_by_itself_is_named(name: str, change: Any, run: Path, data: DataSet) -> None:
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content, indent=2))
    with pytest.raises(RunError, match=re.escape(f"{name}: was edited")):
        use(run, data)
    with pytest.raises(LoadError, match=re.escape(f"{name}: was edited")):
        memwrap.load(run)


def test_classes_that_the_moREMOVEDdoes_not_have_are_named(finished: Path) -> None:
    edit(finished / "run.json", ["classes"], list("9876543210"))
    with pytest.raises(RunError, match="its classes are 9, 8"):
        open_run(finished).model()


def test_a_run_that_contradicts_itself_is_not_resumed(unfinished: Path, data: DataSet) -> None:
    edit(unfinished / "run.json", ["classes"], list("9876543210"))
    with pytest.raises(RunError, match="its classes are 9, 8"):
        resume(open_run(unfinished), data)


def test_only_older_versions_lack_a_root_hash(finished: Path) -> None:
    content = json.loads((finished / "model.json").read_text())
    (finished / "model.json").write_text(json.dumps({**content, "root": None, "documents": {}}))
    with pytest.raises(RunError, match="has no root hash"):
        open_run(finished)


def test_a_memory_of_images_that_were_not_trained_on_is_named(finished: Path) -> None:
    splits = json.loads((finished / "splits.json").read_text())
    edit(finished / "model.json", ["training", "remembered"], splits["test"][:10])
    with pytest.raises(RunError, match="images that it was not trained on"):
        open_run(finished).model()


def test_a_run_of_an_older_version_is_used_with_a_warning_and_gets_a_root_hash(unfinished: Path, data: DataSet) -> None:
    content = json.loads((unfinished / "model.json").read_text())
    content = {key: value for key, value in content.items() if key not in ("root", "documents")}
    (unfinished / "model.json").write_text(json.dumps({**content, "memwrap": "0.1.0"}))
    with pytest.warns(MemwrapWarning, match="no root hash"):
        resume(open_run(unfinished), data).train()
    run = open_run(unfinished)
    assert run.manifest.root is not None
    assert set(run.manifest.documents) == {"run.json", "splits.json"}


@pytest.mark.parametrize(
    ("name", "keys", "value", "message"),
    [
        ("run.json", ["format"], "memwrap model", "expected 'memwrap run'"),
        ("run.json", ["format_version"], 2, f"has format version 2, written by memwrap {memwrap.__version__}"),
        ("run.json", ["format_version"], "1", "has format version '1'; expected a number"),
        ("run.json", ["format_version"], 0, "has format version 0; expected a number"),
        ("run.json", ["settings", "colour"], "red", "colour"),
        ("run.json", ["settings", "epochs"], None, "epochs is None"),
        ("run.json", ["settings", "epochs"], "2", "epochs is '2'"),
        ("run.json", ["settings", "variant"], "transformer", "variant is 'transformer'"),
        ("run.json", ["settings"], [1], "settings"),
        ("run.json", ["settings"], REMOVED, "settings is missing"),
        ("run.json", ["data", "fingerprint"], 5, "data.fingerprint is 5"),
        ("run.json", ["data", "colour"], "red", "colour"),
        ("run.json", ["classes"], "0123456789", "classes is '0123456789'"),
        ("run.json", ["classes"], [0, 1], "classes[0] is 0"),
        ("splits.json", ["train"], REMOVED, "train is missing"),
        ("splits.json", ["train"], [0, 1], "an image is in two splits, or in none"),
        ("model.json", ["format_version"], 2, "has format version 2"),
        ("model.json", ["training"], "yes", "training is 'yes'"),
        ("model.json", ["training", "progress"], REMOVED, "progress is missing"),
        ("model.json", ["training", "progress", "step"], "2", "progress.step is '2'"),
        ("model.json", ["training", "finished"], 0, "finished is 0"),
        ("model.json", ["transform"], {"shape": [1], "mean": [0], "std": [1]}, "transform"),
    ],
)
def test_a_wrong_field_is_named(name: str, keys: list[str], value: Any, message: str, run: Path, data: DataSet) -> None:
    edit(run / name, keys, value)
    with pytest.raises(RunError, match=re.escape(message)):
        use(run, data)


@pytest.mark.parametrize(
    ("name", "keys", "value"),
    [
        ("model.json", ["training", "progress", "step"], 1),
        ("model.json", ["training", "progress", "step"], 4),  # of 4: the run would be finished
        ("model.json", ["training", "progress", "seen"], 16),
        ("model.json", ["training", "progress", "colour"], 1),
        ("run.json", ["settings", "optimizer"], "adamw"),
        ("run.json", ["settings", "epochs"], 1),
        ("run.json", ["settings", "batch_size"], 33),
        ("run.json", ["settings", "memory_size"], 33),
        ("run.json", ["settings", "remember"], 33),
    ],
)
def test_a_state_that_does_not_go_with_the_settings_is_not_resumed(
    name: str, keys: list[str], value: Any, unfinished: Path, data: DataSet
) -> None:
    edit(unfinished / name, keys, value)
    run = open_run(unfinished)
    with pytest.raises(RunError, match=r"do not match the state of its training|colour is unknown"):
        resume(run, data)


@pytest.mark.parametrize("change", ["missing", "of another size", "of unknown labels", "not a number"])
def test_a_queue_that_cannot_be_the_run_s_is_not_resumed(change: str, data: DataSet, tmp_path: Path) -> None:
    queued = Settings(encoder="tiny", samples=32, test=0.5, epochs=2, batch_size=16, memory="queue", memory_size=24)
    assert not begin(tmp_path / "run", data, queued, "default").train(lambda: True)
    resume(open_run(tmp_path / "run"), data)
    if change == "missing":
        edit(tmp_path / "run" / "model.json", ["files", "queue"], REMOVED)
    else:
        stored = resume(open_run(tmp_path / "run"), data).trainer.queue
        changed = {
            "of another size": {"labels": stored.labels[1:], "encodings": stored.encodings[1:]},
            "of unknown labels": {"labels": stored.labels + 10, "encodings": stored.encodings},
            "not a number": {"labels": stored.labels, "encodings": stored.encodings / 0},
        }
        (file,) = (tmp_path / "run").glob("queue.*.safetensors")
        save_file(changed[change], file)
        seal(tmp_path / "run")
    with pytest.raises(RunError, match="do not match the state of its training"):
        resume(open_run(tmp_path / "run"), data)


def test_a_checkpoint_without_the_optimizer_is_not_resumed(unfinished: Path, data: DataSet) -> None:
    edit(unfinished / "model.json", ["files", "optimizer"], REMOVED)
    with pytest.raises(RunError, match="is damaged"):
        resume(open_run(unfinished), data)


def test_a_moREMOVEDwithout_the_state_of_its_training_cannot_be_resumed(unfinished: Path, data: DataSet) -> None:
    edit(unfinished / "model.json", ["training"], REMOVED)
    with pytest.raises(RunError, match="holds a model without the state of its training; it cannot be resumed"):
        resume(open_run(unfinished), data)


def test_a_missing_size_is_named(run: Path) -> None:
    for size in (REMOVED, None, [], 8, ["8", "8"], [0, 8]):
        edit(run / "run.json", ["data", "conversion", "size"], size if size is not REMOVED else None)
        with pytest.raises(RunError, match="lacks the size of its images"):
            data_of(open_run(run))


@pytest.mark.parametrize("side", [20_000, SIZE_LIMIT, 9])
def test_images_are_read_at_the_size_of_the_moREMOVEDonly(side: int, run: Path) -> None:
    edit(run / "run.json", ["data", "conversion", "size"], [side, side])
    with pytest.raises(RunError, match=rf"{side}.*8|at most {SIZE_LIMIT}"):
        data_of(open_run(run))


HUGE = [
    *[("run.json", ["settings", name], 10**30) for name in ("epochs", "batch_size", "memory_size", "project", "size")],
    *[("run.json", ["settings", name], 1e300) for name in ("lr", "weight_decay", "scale", "clip", "validation")],
    ("run.json", ["settings", "seed"], 10**300),
    *[("model.json", ["training", "seconds"], seconds) for seconds in (math.nan, math.inf, 1e308, -1.0)],
    *[("model.json", ["training", "progress", name], count) for name in ("step", "seen") for count in (-2, 10**30)],
    *[("model.json", ["training", "progress", "correct"], count) for count in (-2, 10**30)],
    *[("model.json", ["training", "progress", "loss"], loss) for loss in (math.nan, math.inf, 1e308)],
    *[("model.json", ["training", "sessions", 0, name], 10**40) for name in ("step", "threads")],
]


@pytest.mark.parametrize(("name", "keys", "value"), HUGE)
def test_numbers_beyond_all_reason_are_refused(
    name: str, keys: list[str], value: Any, unfinished: Path, data: DataSet
) -> None:
    edit(unfinished / name, keys, value)
    with pytest.raises(RunError, match=re.escape(str(keys[-1]))):
        resume(open_run(unfinished), data).train()


@pytest.mark.filterwarnings("ignore::memwrap.MemwrapWarning")
@settings(max_examples=100)
@given(file=st.integers(0, 5), place=st.floats(0, 1, exclude_max=True), byte=st.integers(0, 255))
def test_whatever_byte_is_damaged_the_run_is_used_or_refused_with_a_reason(
    file: int, place: float, byte: int, originals: dict[str, Path], data: DataSet
) -> None:
    for kind in ("unfinished", "finished"):
        path = originals[kind]
        names = (*TEXTS, *sorted(each.name for each in path.glob("*.safetensors")))
        target = path / names[file % len(names)]
        good = target.read_bytes()
        damaged = bytearray(good)
        damaged[int(place * len(good))] = byte
        target.write_bytes(damaged)
        try:
            use(path, data)
        except RunError:
            assert damaged != good
        else:
            same = target.name == "model.json" and json.loads(damaged) == json.loads(good)
            assert damaged == good or same
        finally:
            target.write_bytes(good)


def test_a_json_file_that_cannot_be_written_is_named(run: Path) -> None:
    opened = open_run(run)
    shutil.rmtree(run)
    with pytest.raises(SaveError, match=r"evaluation\.json: cannot be written"):
        opened.write_json("evaluation.json", {})
