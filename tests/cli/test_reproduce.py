"""memwrap reproduce: missing runs are trained, tables come from records, and problems are reported."""

import os
import re
import signal
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from memwrap.cli import reproduce as command
from memwrap.cli.reproduce import aligned, parse_seeds
from memwrap.data import CLASS_NAMES, DataSet
from memwrap.errors import DivergedError, SaveError, SettingsError
from memwrap.reproduce import record_files
from memwrap.reproduce.published import Cell, Published
from memwrap.reproduce.record_files import append_record, claim
from memwrap.reproduce.records import Failure, RunRecord, read_records
from memwrap.reproduce.runner import Loop, RunConfig
from memwrap.training.recipes import RECIPES
from memwrap.training.settings import Settings
from memwrap.training.trainer import Trainer
from tests.cli import NO_NETWORK, fails, photos, run, run_apart, succeeds
from tests.reproduce.records import failed, recorded, tasks_of

FILES = ["table.csv", "table.md", "table.png"]
ENCODER = "shufflenet_v2"
CELLS = {
    Cell("accuracy", "svhn", 16, ENCODER, variant, size): Published(50.0, 5.0, 15)
    for variant, size in (("standard", 0), ("memory_wrap", 8))
}
EXPLAINED = {Cell("explanation_accuracy", "svhn", 16, ENCODER, "memory_wrap", 8): Published(80.0, 2.0, 15)}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Tables and a recipe that are quick to train; and the flag that names the images."""
    recipe = Settings(validation=4, epochs=1, batch_size=8, memory="random", warmup=0.0, augment=())
    monkeypatch.setitem(RECIPES, "svhn", recipe)
    tables = {"svhn-reduced": CELLS, "explanations": EXPLAINED, "cost": CELLS}
    monkeypatch.setattr("memwrap.reproduce.published._read_all", lambda: tables)
    for split in ("train", "test"):
        photos(tmp_path / "images" / split, count=20, seed=ord(split[1]))
    return f"--images=svhn={tmp_path / 'images'}"


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "results" / "table"


@pytest.fixture
def records(out: Path) -> Path:
    """The default file of records."""
    return out.parent / "records.jsonl"


def lines(shown: str, encoder: str = "ShuffleNetV2") -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(encoder)]


# Trained


def test_a_table_is_trained_shown_and_written(small: str, out: Path, records: Path) -> None:
    result = succeeds("reproduce", "svhn-reduced", "--seeds", 2, "--out", out, small)
    assert sorted(path.name for path in out.iterdir()) == FILES
    found = read_records([records])
    assert [task.name for task in found.results] == [
        f"svhn-16-{ENCODER}-standard-seed0",
        f"svhn-16-{ENCODER}-standard-seed1",
        f"svhn-16-{ENCODER}-memory_wrap-8-random-seed0",
        f"svhn-16-{ENCODER}-memory_wrap-8-random-seed1",
    ]
    standard, wrapped = lines(result.out)
    for line, words in ((standard, "Standard"), (wrapped, "Memory Wrap")):
        assert re.search(rf"ShuffleNetV2 +{words} +16 samples .* 50.00 ± 5.00 .* (agrees|differs)", line), line
    assert "4 runs on cpu" in result.out
    assert "images instead of the published SVHN (40 for training, 40 for the test)" in result.out
    assert "40 training and 40 test images, replaces the published svhn" in result.err
    assert "0 of 4 runs are done; about" in result.err
    assert "4 of 4 runs are done" in result.err
    assert re.search(r"standard-seed0: \d+\.\d\d % in \d", result.err)
    assert (out / "table.md").read_text().count("±") >= 4


def test_only_what_is_missing_is_trained(small: str, out: Path, records: Path) -> None:
    succeeds("reproduce", "svhn-reduced", "--seeds", 1, "--out", out, small)
    first = records.read_bytes()
    result = succeeds("reproduce", "svhn-reduced", "--seeds", 2, "--variant", "memory_wrap", "--out", out, small)
    assert "1 of 2 runs are done; about" in result.err
    assert "a guess" not in result.err, "the first run predicts the second"
    assert records.read_bytes().startswith(first)
    assert records.read_bytes().count(b"\n") == 3
    assert len(lines(result.out)) == 1


def test_tables_share_runs(small: str, out: Path) -> None:
    succeeds("reproduce", "svhn-reduced", "--seeds", 2, "--out", out, small)
    result = succeeds("reproduce", "explanations", "--seeds", 2, "--out", out.parent / "other")
    assert "2 of 2 runs are done\n" in result.err
    assert "Memory samples from the whole training set" in result.out
    assert "Memory samples from the training subset" in result.out
    assert len([line for line in result.out.splitlines() if line.startswith("SVHN")]) == 2


def test_seeds_of_another_machine_are_merged(small: str, out: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    for path, seeds in ((here, "1"), (there, "1-2")):
        succeeds("reproduce", "svhn-reduced", "--seeds", seeds, "--records", path, "--out", out, small)
    assert [task.seed for task in read_records([there]).results] == [1, 2, 1, 2]
    both = ("reproduce", "svhn-reduced", "--from-records", "--records", here, "--records", there, "--out", out)
    result = succeeds(*both)
    assert "6 runs on cpu" in result.out
    assert all(re.search(r" 3 +\d+\.\d\d +50.00 ± 5.00", line) for line in lines(result.out)), "three seeds each"
    some = succeeds(*both, "--seeds", 2)
    assert "4 runs on cpu" in some.out, "only those that were asked for"


def test_batch_as_memory_has_its_own_records_and_table(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, small)
    succeeds(*flags)
    result = succeeds(*flags, "--memory", "batch")
    assert "1 of 2 runs are done; about" in result.err, "Standard is the same"
    assert "trained with the batch as memory" in result.out
    assert sorted(path.name for path in (tmp_path / "reproduced").iterdir()) == [
        "records.jsonl",
        "svhn-reduced",
        "svhn-reduced-batch",
    ]
    assert [task.memory for task in read_records([tmp_path / "reproduced" / "records.jsonl"]).results] == [
        "none",
        "random",
        "batch",
    ]


def test_a_run_that_dies_is_reported_and_tried_again(
    small: str, out: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Loop.train

    def dying(self: Loop, trainers: Sequence[Trainer], *others: Any) -> list[DivergedError | None]:
        if trainers[0].settings.seed == 1 and trainers[0].settings.variant == "standard":
            return [DivergedError("training diverged in step 3 of 7")]
        return plain(self, trainers, *others)

    flags = ("reproduce", "svhn-reduced", "--seeds", 2, "--out", out, small)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train", dying)
        result = run(*flags)
    assert result.code == 5
    assert "standard-seed1: failed: training diverged in step 3 of 7" in result.err
    assert "1 of 4 runs failed" in result.err
    assert "3 of 4 runs are done, 1 failed" in result.err
    assert f"not counted: 1 (svhn-16-{ENCODER}-standard-seed1)" in result.out
    assert sorted(path.name for path in out.iterdir()) == FILES
    planned = succeeds(*flags, "--dry-run")
    assert "1 of the missing runs failed before" in planned.out
    assert "failed" not in succeeds(*flags).out
    assert read_records([records]).failures == ()


def test_ctrl_c_keeps_what_is_done(small: str, out: Path, records: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Loop.train

    def interrupted(self: Loop, trainers: Sequence[Trainer], *others: Any) -> list[DivergedError | None]:
        if trainers[0].settings.variant == "memory_wrap":
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, trainers, *others)

    flags = ("reproduce", "svhn-reduced", "--seeds", 2, "--out", out, small)
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "train", interrupted)
        result = run(*flags)
    assert result.code == 130
    assert f"stopped; 2 of 4 runs are done. Finished runs are in {records};" in result.err
    assert not out.exists()
    assert len(read_records([records]).results) == 2
    assert "2 of 4 runs are done; about" in succeeds(*flags).err


# From records


@pytest.fixture
def recorded_runs(records: Path) -> Path:
    for task in tasks_of("svhn-reduced", range(3)):
        append_record(records, recorded(task, 0.6 + task.seed / 100))
    return records


@pytest.mark.parametrize(("kernels", "loop"), [(False, False), (True, True)])
def test_runs_are_trained_one_by_one_without_kernels_or_by_request(
    kernels: bool, loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memwrap.nn.gpu.kernels_run_on", lambda _: kernels)
    config = RunConfig.for_device(torch.device("cuda"), loop)
    assert isinstance(config.engine, Loop)
    assert (config.name, config.side_by_side) == ("loop", 1)


def test_a_table_needs_its_records_alone(recorded_runs: Path, out: Path) -> None:
    before = recorded_runs.read_bytes()
    result = run_apart("reproduce", "svhn-reduced", "--from-records", "--out", out, before=NO_NETWORK)
    assert result.code == 0, result.err
    assert "81 runs on cpu" in result.out
    assert sorted(path.name for path in out.iterdir()) == FILES
    assert recorded_runs.read_bytes() == before


def test_all_seeds_of_the_records_count_unless_some_are_asked_for(recorded_runs: Path, out: Path) -> None:
    flags = ("reproduce", "svhn-reduced", "--encoder", "resnet18", "--samples", 1000, "--from-records", "--out", out)
    assert "9 runs on cpu" in succeeds(*flags).out
    assert "6 runs on cpu" in succeeds(*flags, "--seeds", "1-2").out
    assert "3 runs on cpu" in succeeds(*flags, "--seeds", "1").out


def test_damaged_records_are_reported_and_the_others_count(recorded_runs: Path, out: Path) -> None:
    damaged = recorded_runs.read_text().splitlines()
    damaged[3] = damaged[3][:-10]
    recorded_runs.write_text("\n".join(damaged))
    result = succeeds("reproduce", "svhn-reduced", "--from-records", "--out", out)
    assert f"warning: {recorded_runs}, line 4: " in result.err
    assert "80 runs on cpu" in result.out


def test_of_many_problems_some_are_listed(records: Path, out: Path) -> None:
    append_record(records, recorded())
    with records.open("a") as file:
        file.write("damaged\n" * 15)
    result = succeeds("reproduce", "svhn-reduced", "--from-records", "--out", out)
    assert result.err.count("warning: ") == 11
    assert "warning: 5 more lines" in result.err


def test_missing_records_are_refused(out: Path, tmp_path: Path) -> None:
    message = "there is no such file of records"
    assert message in fails(4, "reproduce", "svhn-reduced", "--from-records", "--out", out)
    flags = ("--records", tmp_path / "new.jsonl", "--records", tmp_path / "typo.jsonl", "--out", out)
    assert f"{tmp_path / 'typo.jsonl'}: {message}" in fails(4, "reproduce", "svhn-reduced", *flags)


def test_records_of_another_table_make_no_table(records: Path, out: Path) -> None:
    append_record(records, recorded())
    append_record(records, failed())
    message = fails(4, "reproduce", "cifar10-reduced", "--from-records", "--out", out)
    assert f"{records}: there is no record of a run of this table" in message
    assert not out.exists()


# Dry runs


def test_a_dry_run_prints_what_is_missing_and_does_nothing(tmp_path: Path, out: Path) -> None:
    result = succeeds("reproduce", "svhn-reduced", "--seeds", 15, "--out", out, "--device", "cpu", "--dry-run")
    assert "svhn-reduced: 405 runs; done: 0, missing: 405" in result.out
    assert re.search(r"on cpu: \d+ days \(a guess\)", result.out)
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_estimates_from_records(recorded_runs: Path, out: Path) -> None:
    flags = ("reproduce", "svhn-reduced", "--seeds", 5, "--out", out, "--device", "cpu", "--dry-run")
    result = succeeds(*flags)
    assert "135 runs; done: 81, missing: 54" in result.out
    assert "13 min 30 s (from records" in result.out, "54 of 15 s"
    result = succeeds("reproduce", "memory-size", "--encoder", "resnet18", *flags[2:])
    assert re.search(r"a guess for 45 of 51 runs", result.out), "those of another memory size"


def test_a_dry_run_of_what_is_there(recorded_runs: Path, out: Path) -> None:
    result = succeeds("reproduce", "svhn-reduced", "--seeds", 3, "--out", out, "--dry-run")
    assert "81 runs; done: 81, missing: 0" in result.out
    assert "estimated" not in result.out


def test_a_dry_run_of_what_needs_no_runs(tmp_path: Path) -> None:
    result = succeeds("reproduce", "parameters", "--out", tmp_path / "table", "--dry-run")
    assert result.out == "parameters: needs no runs\n"
    assert list(tmp_path.iterdir()) == []


# Refused


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("mnist",), "table 'mnist' is not known; known are svhn-reduced"),
        (("cost",), "memwrap bench --only sizes"),
        (("full", "--seeds", "0"), "seeds is '0'; expected"),
        (("full", "--seeds", "9-5"), "seeds is '9-5'"),
        (("full", "--dry-run", "--from-records"), "give one of them"),
        (("full", "--samples", "1000"), "table 'full' has no samples 1000; it has all"),
        (("full", "--encoder", "tiny"), "table 'full' has no encoder 'tiny'; it has"),
        (("full", "--variant", "wrapped"), "no variant 'wrapped'"),
        (("full", "--memory", "balanced"), "memory is 'balanced'; expected random or batch"),
        (("svhn-reduced", "--images", "svhn.zip"), "images is 'svhn.zip'; expected NAME=PATH"),
        (("svhn-reduced", "--images", "cifar10=x.zip"), "where NAME is svhn"),
        (("svhn-reduced", "--device", "abacus"), "device is 'abacus'"),
    ],
)
def test_wrong_usage_is_refused(flags: tuple[str, ...], message: str, out: Path) -> None:
    assert message in fails(2, "reproduce", *flags, "--out", out)
    assert not out.parent.exists()


def test_data_that_is_missing_is_reported_before_any_training(tmp_path: Path, out: Path) -> None:
    flags = ("reproduce", "svhn-reduced", "--out", out, "--data-root", tmp_path / "nothing")
    result = run_apart(*flags, before=NO_NETWORK)
    assert result.code == 3, result.err
    assert "train_32x32.mat" in result.err
    assert not out.parent.exists()


def test_a_damaged_data_file_is_reported_before_any_training(tmp_path: Path, out: Path) -> None:
    (tmp_path / "train_32x32.mat").write_bytes(b"damaged")
    result = run_apart("reproduce", "svhn-reduced", "--out", out, "--data-root", tmp_path, before=NO_NETWORK)
    assert result.code == 3, result.err
    assert "damaged" in result.err
    assert not out.parent.exists()


def test_missing_images_are_refused(small: str, out: Path) -> None:
    assert "no.zip: there is no such folder or zip to read svhn from" in fails(
        3, "reproduce", "svhn-reduced", "--images", "svhn=no.zip"
    )


def test_records_of_other_images_are_not_continued(small: str, out: Path, tmp_path: Path) -> None:
    succeeds("reproduce", "svhn-reduced", "--seeds", 1, "--out", out, small)
    for split in ("train", "test"):
        photos(tmp_path / "others" / split, count=20, seed=500)
    others = f"--images=svhn={tmp_path / 'others'}"
    message = fails(3, "reproduce", "svhn-reduced", "--seeds", 2, "--out", out, others)
    assert "(images, 40 for training)" in message


def test_records_of_other_images_are_not_added_to_even_by_other_runs(small: str, out: Path, tmp_path: Path) -> None:
    """A table of both could not be made."""
    succeeds("reproduce", "svhn-reduced", "--variant", "standard", "--seeds", 1, "--out", out, small)
    for split in ("train", "test"):
        photos(tmp_path / "others" / split, count=20, seed=500)
    others = f"--images=svhn={tmp_path / 'others'}"
    message = fails(3, "reproduce", "svhn-reduced", "--variant", "memory_wrap", "--seeds", 1, "--out", out, others)
    assert "(images, 40 for training)" in message


def test_a_part_of_a_table_has_its_own_title_and_folder(
    small: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = succeeds("reproduce", "svhn-reduced", "--variant", "standard", "--seeds", 1, small)
    assert "(a part of the table)" in shown.out
    assert (tmp_path / "reproduced" / "svhn-reduced-standard" / "table.md").exists()
    assert (tmp_path / "reproduced" / "records.jsonl").exists()
    assert not (tmp_path / "reproduced" / "svhn-reduced").exists()


def test_several_values_narrow_a_table_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    records = tmp_path / "records.jsonl"
    for task in tasks_of("svhn-reduced", range(2)):
        append_record(records, recorded(task))
    encoders = ["--encoder", "resnet18", "--encoder", "mobilenet_v2"]
    samples = ["--samples", 2000, "--samples", 1000, "--samples", 2000]
    shown = succeeds("reproduce", "svhn-reduced", *encoders, *samples, "--from-records", "--records", records)
    assert len([line for line in shown.out.splitlines() if re.search(r"[12]000 samples", line)]) == 2 * 2 * 3
    (folder,) = (tmp_path / "reproduced").iterdir()
    assert folder.name == "svhn-reduced-mobilenet_v2-resnet18-1000-2000"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that takes no files, as Linux has one")
def test_a_place_where_nothing_can_be_written_is_reported_before_any_training(
    small: str, out: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, small)
    assert "records cannot be written there" in fails(5, *flags, "--out", out, "--records", "/proc/none.jsonl")
    assert "is not a folder" in fails(5, *flags, "--out", tmp_path / "file")
    assert not out.exists()


def test_records_go_to_a_temporary_file_when_the_disk_is_full(
    small: str, out: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "elsewhere"))
    real = record_files.append_record

    def full_after_one(path: Path, entry: RunRecord | Failure) -> None:
        if path == records and read_records([records]).results:
            raise SaveError(f"{path}: cannot be written (No space left on device)")
        real(path, entry)

    monkeypatch.setattr(record_files, "append_record", full_after_one)
    # Three at once, so that two more are trained already when the disk is full, and others have not begun.
    monkeypatch.setattr(RunConfig, "for_device", lambda device, _: RunConfig(Loop(), "loop", device, side_by_side=3))
    flags = ("reproduce", "svhn-reduced", "--seeds", 3, small, "--out", out)
    message = fails(5, *flags)
    (elsewhere,) = (tmp_path / "elsewhere").glob("*.jsonl")
    assert "No space left on device" in message
    assert f"--records {records} --records {elsewhere}" in " ".join(message.split())
    assert [len(read_records([path]).results) for path in (records, elsewhere)] == [1, 2]
    assert [task.seed for task in read_records([records, elsewhere]).results] == [0, 1, 2]


def test_a_full_disk_everywhere_is_reported(
    small: str, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, entry: RunRecord | Failure) -> None:
        raise SaveError(f"{path}: cannot be written (No space left on device)")

    monkeypatch.setattr(record_files, "append_record", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "not there"))
    message = fails(5, "reproduce", "svhn-reduced", "--seeds", 1, small, "--out", out)
    assert message.count("No such file") + message.count("No usable") == 1


def test_a_table_does_not_replace_the_records(small: str, out: Path) -> None:
    message = fails(2, "reproduce", "svhn-reduced", small, "--out", out, "--records", out / "table.md")
    assert "which is a file of the table; name another one" in " ".join(message.split())


def test_records_may_come_from_a_pipe(recorded_runs: Path, out: Path) -> None:
    pipe = recorded_runs.with_name("pipe")
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as writer:
        writer.submit(pipe.write_bytes, recorded_runs.read_bytes())
        shown = succeeds("reproduce", "svhn-reduced", "--from-records", "--records", pipe, "--out", out)
    assert len(lines(shown.out, "MobileNetV2")) == 9


@pytest.mark.parametrize("flag", ["--records", "--out", "--images"])
def test_an_unknown_home_is_refused(flag: str, small: str, out: Path) -> None:
    value = f"{'svhn=' * (flag == '--images')}~nobody-of-this-name/x"
    assert "~nobody-of-this-name" in fails(
        2, "reproduce", "svhn-reduced", *([small] * (flag != "--images")), flag, value
    )


def test_names_that_are_too_long_are_refused(small: str, out: Path) -> None:
    flags = ("reproduce", "svhn-reduced", "--out", out)
    assert "there is no such folder or zip" in fails(3, *flags, "--images", f"svhn={'x' * 300}")
    assert "there is no such file of records" in fails(4, *flags, "--from-records", "--records", "x" * 300)


def test_a_place_for_the_table_that_cannot_take_it_is_reported_before_any_training(
    small: str, out: Path, records: Path, tmp_path: Path
) -> None:
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, small, "--records", records)
    assert "/proc/t: the table cannot be written there" in fails(5, *flags, "--out", "/proc/t")
    (out / "table.md").mkdir(parents=True)
    assert f"{out / 'table.md'}: is a folder" in fails(5, *flags, "--out", out)
    assert "the table cannot be written there" in fails(5, *flags, "--out", out / ("x" * 300))
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    assert "is not a folder" in fails(5, *flags, "--out", tmp_path / "nowhere")
    assert not records.exists()


def test_other_images_are_noticed_though_no_run_is_missing(small: str, out: Path, tmp_path: Path) -> None:
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, "--out", out)
    succeeds(*flags, small)
    for split in ("train", "test"):
        photos(tmp_path / "others" / "images" / split, count=20, seed=7)
    others = f"--images=svhn={tmp_path / 'others' / 'images'}"
    assert "holds other images" in fails(3, *flags, others)
    assert "--from-records reads no images" in fails(2, *flags, others, "--from-records")


def test_images_that_have_no_test_images_are_refused(small: str, out: Path, tmp_path: Path) -> None:
    photos(tmp_path / "flat", count=20, seed=1)
    message = fails(3, "reproduce", "svhn-reduced", "--seeds", 1, "--out", out, f"--images=svhn={tmp_path / 'flat'}")
    assert f"{tmp_path / 'flat'}: has no test images" in message


def test_images_of_another_data_set_are_refused(small: str, out: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        photos(tmp_path / "cifar10" / split, CLASS_NAMES["cifar10"], count=4, seed=1)
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, "--out", out)
    message = fails(3, *flags, f"--images=svhn={tmp_path / 'cifar10'}")
    assert "has the classes of cifar10 and cinic10 (airplane, " in message
    assert not out.exists()


def test_another_number_of_classes_than_the_papers_is_reported(small: str, out: Path) -> None:
    assert re.search(
        r"replaces the published svhn; it has \d classes instead of 10",
        succeeds("reproduce", "svhn-reduced", "--seeds", 1, "--out", out, small).err,
    )


@pytest.mark.skipif(sys.platform in ("win32", "darwin"), reason="needs a file system whose names are bytes")
def test_a_name_that_is_not_text_is_escaped_in_the_table(small: str, out: Path, tmp_path: Path) -> None:
    strange = tmp_path / os.fsdecode(b"im\xe9")
    (tmp_path / "images").rename(strange)
    succeeds("reproduce", "svhn-reduced", "--seeds", 1, "--out", out, f"--images=svhn={strange}")
    assert "Images: im\\\\udce9 instead of the published SVHN (40" in (out / "table.md").read_text()


def test_the_reason_is_reported_when_all_runs_fail(
    small: str, out: Path, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Loop, trainers: Sequence[Trainer], *others: Any) -> list[DivergedError | None]:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Loop, "train", die)
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, "--out", out)
    for message in (fails(5, *flags, small), fails(5, *flags, "--from-records")):
        assert "no run has a result; 2 failed" in message
        assert "the disk is gone" in message
    assert len(read_records([records]).failures) == 2


def test_another_process_that_adds_to_the_same_file_is_reported(small: str, out: Path, records: Path) -> None:
    flags, words = ("reproduce", "svhn-reduced", "--out", out, small), "another memwrap reproduce is adding runs"
    with claim(records) as only_one:
        assert only_one
        assert f"{records}: {words}" in succeeds(*flags, "--seeds", 1).err
        assert words not in succeeds(*flags, "--seeds", 1).err  # nothing is missing, so nothing is added
    assert words not in succeeds(*flags, "--seeds", 2).err


def test_runs_that_another_process_made_while_images_were_read_are_not_made_again(
    small: str, out: Path, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("reproduce", "svhn-reduced", "--seeds", 1, small)
    theirs = tmp_path / "theirs.jsonl"
    succeeds(*flags, "--out", tmp_path / "theirs", "--records", theirs)
    opened = command.data_for

    def slowly(*given: Any, **options: Any) -> DataSet:
        records.parent.mkdir(exist_ok=True)
        theirs.replace(records)
        return opened(*given, **options)

    monkeypatch.setattr(command, "data_for", slowly)
    assert "2 of 2 runs are done" in succeeds(*flags, "--out", out).err
    assert len(records.read_text().splitlines()) == 2


def test_counted_parameters_need_no_records(out: Path) -> None:
    result = succeeds(
        "reproduce", "parameters", "--encoder", "resnet18", "--from-records", "--memory", "batch", "--out", out
    )
    assert "trained with" not in result.out


def test_images_named_twice_are_refused(small: str, out: Path, tmp_path: Path) -> None:
    message = fails(2, "reproduce", "svhn-reduced", "--out", out, small, f"--images=svhn={tmp_path}")
    assert "images names svhn twice" in message


# Parsing


@pytest.mark.parametrize(("text", "seeds"), [("1", [0]), ("3", [0, 1, 2]), ("5-7", [5, 6, 7]), ("4-4", [4])])
def test_seeds(text: str, seeds: list[int]) -> None:
    assert list(parse_seeds(text)) == seeds


@pytest.mark.parametrize("text", ["", "0", "-1", "five", "3-", "3-1", "1.5", "²"])
def test_no_seeds(text: str) -> None:
    with pytest.raises(SettingsError, match="expected"):
        parse_seeds(text)


def test_columns_are_aligned_and_empty_ones_are_left_out() -> None:
    assert aligned([["a", "b", "c"], ["wide", "", "x"]]) == ["a     c", "wide  x"]


def test_parameters_need_no_runs(tmp_path: Path) -> None:
    result = succeeds("reproduce", "parameters", "--encoder", "resnet18", "--out", tmp_path / "table")
    assert result.out.count("equal") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["table"]
