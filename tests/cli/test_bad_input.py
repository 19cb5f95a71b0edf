"""What is given to a command and cannot be used: told in words, with its code, and nothing is left behind."""

import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from memwrap.data import zip_directory
from memwrap.encoders import timm_models
from tests.cli import (
    NO_NETWORK,
    QUICK,
    Result,
    environment,
    fails,
    photos,
    picture,
    program,
    record,
    run,
    run_apart,
    same_weights,
    succeeds,
)
from tests.cli.conftest import Trained
from tests.data.test_download import Server
from tests.data.test_download import server as server  # the fixture
from tests.data.test_published import svhn_server as svhn_server  # likewise
from tests.data.test_scan import huge_picture


def refuses(code: int, data: object, out: Path, *flags: object) -> str:
    """What training says, that leaves nothing where the run was to be."""
    message = fails(code, "train", data, "--out", out, *QUICK, *flags)
    assert not out.exists()
    assert [path for path in out.parent.iterdir() if path.name.startswith(".")] == []
    return message


# folders


@pytest.fixture
def spoiled(data: Path) -> Path:
    """A folder with bad files among the good ones."""
    (data / "cat" / "empty.png").touch()
    whole = picture(data / "cat" / "cut.png", 0, seed=0, size=32).read_bytes()
    (data / "cat" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (data / "dog" / "letter.jpg").write_text("Dear Sir or Madam")
    (data / "dog" / "notes.txt").write_text("they bark")
    (data / "dog" / "gone.png").symlink_to(data / "nowhere.png")
    return data


BAD = ("cat/empty.png", "cat/cut.png", "dog/letter.jpg", "dog/notes.txt", "dog/gone.png")


def test_bad_files_are_all_listed(spoiled: Path, out: Path) -> None:
    message = refuses(3, spoiled, out)
    assert "5 of 25 files in class folders cannot be used as images" in message
    for name in BAD:
        assert f"  {name}: " in message
    assert "--skip-bad" in message


def test_bad_files_are_left_out_if_one_says_so(spoiled: Path, out: Path) -> None:
    result = succeeds("train", spoiled, "--out", out, *QUICK, "--skip-bad")
    assert "warning: 5 files are left out, as they cannot be used as images, such as cat/cut.png" in result.err
    assert sorted(record(out)["data"]["conversion"]["left_out"]) == sorted(BAD)
    assert "16 images of 2 classes" in result.err


def test_a_folder_that_may_not_be_read_is_named(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is forbidden to root")
    (data / "cat").chmod(0)
    message = refuses(3, data, out)
    (data / "cat").chmod(stat.S_IRWXU)
    assert "the folder cannot be read" in message


def test_one_class_is_not_enough(tmp_path: Path, out: Path) -> None:
    message = refuses(3, photos(tmp_path / "photos", classes=("cat",)), out)
    assert "one class" in message


def test_a_class_without_images_is_named(data: Path, out: Path) -> None:
    (data / "bird").mkdir()
    assert "classes without images: bird" in refuses(3, data, out)


def test_a_class_without_good_images_is_named(data: Path, out: Path) -> None:
    (data / "bird").mkdir()
    (data / "bird" / "1.png").write_text("tweet")
    assert "no training images are left of bird" in refuses(3, data, out, "--skip-bad")


def test_a_class_that_is_only_in_the_test_is_named(tmp_path: Path, out: Path) -> None:
    photos(tmp_path / "photos" / "train")
    photos(tmp_path / "photos" / "test", classes=("cat", "bird"))
    assert "bird" in refuses(3, tmp_path / "photos", out)


def test_test_images_that_are_trained_on_are_counted_and_training_continues(tmp_path: Path, out: Path) -> None:
    photos(tmp_path / "photos" / "train")
    photos(tmp_path / "photos" / "test", count=3, seed=77)
    for name in ("cat", "dog"):
        shutil.copy(tmp_path / "photos" / "train" / name / "4.png", tmp_path / "photos" / "test" / name / "copy.png")
    result = succeeds("train", tmp_path / "photos", "--out", out, *QUICK)
    assert "warning: 2 of 8 test images are training images too, pixel for pixel" in result.err


def test_loose_images_show_how_a_folder_should_look(tmp_path: Path, out: Path) -> None:
    for index in range(3):
        picture(tmp_path / "photos" / f"{index}.png", 0, seed=index)
    assert "expected a folder for each class" in refuses(3, tmp_path / "photos", out)


@pytest.mark.parametrize(
    ("name", "words"),
    [("svnh", "did you mean 'svhn'?"), ("photo", "is neither a published data set"), ("", "nor a folder")],
)
def test_data_that_is_not_there_is_reported_with_what_there_is(out: Path, name: str, words: str) -> None:
    assert words in refuses(3, name, out)


# zips


def zip_with(path: Path, data: Path, name: str, content: bytes = b"x", mode: int = 0) -> Path:
    """A zip of the data, and an entry that should not be there."""
    archive = shutil.make_archive(str(path), "zip", data)
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
        entry = zipfile.ZipInfo(name)
        entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, mode << 16
        file.writestr(entry, content)
    return Path(archive)


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [
        ("../cat/evil.png", 0, "'../cat/evil.png' has a name that leads out of the zip"),
        ("cat/../../evil.png", 0, "has a name that leads out of the zip"),
        ("/tmp/evil.png", 0, "'/tmp/evil.png' has an absolute name"),
        ("C:\\evil.png", 0, "has an absolute name"),
        ("cat/link.png", stat.S_IFLNK | 0o777, "'cat/link.png' is a symbolic link"),
    ],
)
def test_a_zip_that_leads_elsewhere_is_refused(
    data: Path, tmp_path: Path, out: Path, name: str, mode: int, words: str
) -> None:
    archive = zip_with(tmp_path / "zip", data, name, b"/etc/passwd", mode)
    for flags in ((), ("--skip-bad",)):
        assert words in refuses(3, archive, out, *flags)


def test_a_zip_that_would_fill_the_disk_is_refused(
    data: Path, tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zip_directory, "UNPACKED_LIMIT", 1 << 20)
    archive = zip_with(tmp_path / "zip", data, "cat/zeros.png", bytes(10 << 20))
    assert "'cat/zeros.png'" in refuses(3, archive, out, "--skip-bad")


def test_a_zip_with_a_picture_that_would_fill_the_memory_is_refused(data: Path, tmp_path: Path, out: Path) -> None:
    archive = zip_with(tmp_path / "zip", data, "cat/huge.png", huge_picture())
    assert "decompression bomb" in refuses(3, archive, out, "--skip-bad")


def test_a_damaged_zip_is_refused(data: Path, tmp_path: Path, out: Path) -> None:
    archive = Path(shutil.make_archive(str(tmp_path / "zip"), "zip", data))
    archive.write_bytes(archive.read_bytes()[:-300])
    assert "is a damaged zip" in refuses(3, archive, out)


# downloads


def test_a_download_that_is_cut_is_reported_and_continues_with_the_next_command(
    svhn_server: Server, tmp_path: Path, out: Path
) -> None:
    svhn_server.cut_after = 5000
    flags = [
        "--data-root",
        tmp_path / "data",
        "--validation",
        0,
        "--batch-size",
        2,
        "--memory-size",
        2,
        "--remember",
        2,
    ]
    message = refuses(3, "svhn", out, *flags)
    assert "5000 bytes of" in message
    assert "run this again to continue" in message
    svhn_server.cut_after = None
    succeeds("train", "svhn", "--out", out, *QUICK, *flags)
    assert svhn_server.ranges == [None, "bytes=5000-", None], "the rest of train, then test"


PRETRAINED = ("--encoder", "timm:test_resnet", "--size", 32, "--epochs", 1, "--pretrained")


def test_pretrained_weights_without_network_fail_quickly(
    data: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError("the network is blocked")

    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    for variable in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.delenv(variable.lower(), raising=False)
    begun = time.monotonic()
    message = refuses(2, data, out, *PRETRAINED)
    assert time.monotonic() - begun < 10, "the hub's client alone takes 46 seconds"
    assert "the pretrained weights of 'timm:test_resnet' are not available" in message
    assert "--weights model.safetensors" in message


def test_pretrained_weights_fail_quickly_where_the_hub_is_switched_off(data: Path, out: Path) -> None:
    result = run_apart("train", data, "--out", out, *PRETRAINED, before=NO_NETWORK, HF_HUB_OFFLINE="1")
    assert result.code == 2
    assert "are not available" in result.err
    assert "Traceback" not in result.err
    assert not out.exists()


def test_a_hub_counts_as_there_whatever_it_answers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert timm_models._answers(server.url("nothing"))
    monkeypatch.setattr(timm_models, "HUB_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        assert not timm_models._answers(url)
    assert not timm_models._answers(url), "nobody is there any more"


def test_weights_that_are_not_there_are_named_before_anything_is_read(data: Path, out: Path) -> None:
    message = refuses(2, data, out, *PRETRAINED, "--weights", "nowhere.pth")
    assert message == "memwrap: weights is 'nowhere.pth'; there is no such file\n"


# settings


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--recipe", "paper"], "there is no recipe 'paper'; expected one of default, finetune, frozen, photographs"),
        (["--encoder", "resnet19"], "encoder is 'resnet19'; expected one of"),
        (["--encoder", "timm:resnet19", "--size", "32"], "timm has no model 'resnet19'; it has resnet18"),
        (["--variant", "paper"], "variant is 'paper'"),
        (["--device", "gpu"], "device is 'gpu', which cannot be used here; expected auto"),
        (["--device", "cuda:99"], "device is 'cuda:99', which cannot be used here"),
        (["--device", "meta"], "device is 'meta', which cannot be used here"),
        (["--augment", "flop"], "augment[0] is 'flop'"),
        (["--lr", "nan"], "lr is nan"),
        (["--pretrained"], "no pretrained weights; expected lite0, lite1, lite2 or timm:NAME"),
        (["--mean", "0.5,0.5,0.5"], "mean and std"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_cannot_be_are_reported_before_anything_is_read(
    data: Path, out: Path, flags: list[str], words: str
) -> None:
    message = refuses(2, data, out, *flags)
    assert words in message
    assert "reading" not in message


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--memory-size", "17"], "memory_size is 17, but there are 16 training images"),
        (["--memory-size", "17", "--memory", "random"], "expected 1 to 16"),
        (["--remember", "17"], "remember is 17, but there are 16 training images"),
        (["--batch-size", "17"], "batch_size is 17, but there are 16 training images; expected 2 to 16"),
        (["--mean", "0.5", "--std", "0.5"], "expected 3"),
        (["--encoder", "densenet", "--size", "4"], "takes none of the image shapes tried"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_settings_that_do_not_fit_the_data_say_what_is_possible(
    data: Path, out: Path, flags: list[str], words: str
) -> None:
    assert words in refuses(2, data, out, *flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--samples", "17"], "17 images are asked for, but there are 16"),
        (["--test", "20"], "20 of 20 images cannot be set apart"),
        (["--validation", "0.001"], "is no image at all"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_more_images_than_there_are_cannot_be_had(data: Path, out: Path, flags: list[str], words: str) -> None:
    assert words in refuses(3, data, out, *flags)


# training that cannot go on


@pytest.mark.parametrize("variant", ["memory_wrap", "standard"])
def test_a_loss_that_diverges_ends_with_step_rate_and_advice(data: Path, out: Path, variant: str) -> None:
    message = fails(
        5, "train", data, "--out", out, *QUICK, "--epochs", 20, "--lr", 1e9, "--clip", 0, "--warmup", 0,
        "--schedule", "constant", "--variant", variant,
    )  # fmt: skip
    assert "training diverged in step " in message
    assert "of 20 (epoch " in message
    assert "at learning rate 1e+09" in message
    assert "Try a lower rate (lr 1e+08), a longer warm-up" in message
    assert "with another --out" in message


def test_weights_that_diverge_in_the_last_step_of_all_are_not_kept(data: Path, out: Path) -> None:
    """No later loss shows it, but the encodings of the memory do."""
    message = fails(
        5, "train", data, "--out", out, *QUICK, "--lr", 1e30, "--clip", 0, "--warmup", 0, "--schedule", "constant",
        "--epochs", 1,
    )  # fmt: skip
    assert "training diverged in step 1 of 1 (epoch 1) at learning rate 1e+30" in message
    assert "not finished" in fails(4, "predict", out, data)


def with_little_room(limit: int) -> Callable[[], None]:
    """For a process in which no file may grow beyond this, as on a disk that is full."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return prepare


def test_a_full_disk_at_the_start_leaves_nothing_behind(data: Path, out: Path) -> None:
    command = program("train", data, "--out", out, *QUICK)
    ended = subprocess.run(
        command, capture_output=True, text=True, env=environment(), preexec_fn=with_little_room(100_000), check=False
    )
    assert ended.returncode == 5
    assert f"memwrap: {out}: cannot be written ([Errno 27] File too large)\n" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in out.parent.iterdir()) == ["photos"]


def test_a_disk_that_becomes_full_ends_training_which_continues_when_there_is_room(data: Path, tmp_path: Path) -> None:
    flags = ("--encoder", "tiny", "--epochs", 100, "--no-evaluate")
    out, other = tmp_path / "run", tmp_path / "other"
    command = program("train", data, "--out", out, *flags, "--checkpoint-seconds", 0)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        assert any("epoch 1/100" in line for line in process.stderr)
        while record(out, "model.json")["training"]["progress"]["step"] < 2:
            time.sleep(0.01)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        message = process.stderr.read()
    assert process.returncode == 5
    assert "the run cannot be saved" in message
    assert "with --resume" in message
    assert "Traceback" not in message
    assert [path for path in out.iterdir() if path.name.endswith(".partial")] == []

    result = succeeds("train", "--resume", "--out", out, "--no-evaluate")
    assert "continuing from step" in result.err
    succeeds("train", data, "--out", other, *flags)
    assert same_weights(out, other)


def test_a_folder_removed_while_training_ends_it_and_does_not_return(data: Path, out: Path) -> None:
    command = program("train", data, "--out", out, "--encoder", "tiny", "--epochs", 1000, "--checkpoint-seconds", 0)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        assert any("epoch 1/1000" in line for line in process.stderr)
        out.rename(out.with_name("gone"))  # in one step: while files are removed one by one, new ones come
        message = process.stderr.read()
    assert process.returncode in (4, 5)
    assert str(out) in message
    assert "Traceback" not in message
    assert not out.exists()


# runs


def spoil(path: Path, how: str) -> None:
    model = record(path, "model.json")
    tensors = path / model["files"]["weights"]["name"]
    if how == "weights cut":
        tensors.write_bytes(tensors.read_bytes()[:1000])
    elif how == "weights gone":
        tensors.unlink()
    elif how == "weights changed":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(content)
    elif how.endswith("gone"):
        (path / how.removesuffix(" gone")).unlink()
    elif how.endswith("cut"):
        file = path / how.removesuffix(" cut")
        file.write_bytes(file.read_bytes()[:40])
    else:
        (path / how.removesuffix(" emptied")).write_text("{}")


@pytest.mark.parametrize(
    "how",
    [
        "weights cut",
        "weights gone",
        "weights changed",
        "run.json gone",
        "run.json cut",
        "run.json emptied",
        "splits.json gone",
        "splits.json cut",
        "splits.json emptied",
        "model.json gone",
        "model.json cut",
        "model.json emptied",
    ],
)
def test_a_damaged_run_is_refused_by_every_command(trained: Trained, tmp_path: Path, how: str) -> None:
    damaged = shutil.copytree(trained.run, tmp_path / "damaged")
    spoil(damaged, how)
    for command in (["evaluate", damaged], ["predict", damaged, trained.data], ["train", "--resume", "--out", damaged]):
        message = fails(4, *command)
        assert str(damaged) in message


def test_a_run_of_a_later_version_asks_for_it(trained: Trained, tmp_path: Path) -> None:
    newer = shutil.copytree(trained.run, tmp_path / "newer")
    (newer / "run.json").write_text(
        (newer / "run.json").read_text().replace('"format_version": 1', '"format_version": 2')
    )
    assert "install a newer memwrap" in fails(4, "predict", newer, trained.data)


def test_a_run_that_is_being_trained_is_not_trained_by_another(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = program("train", data, "--out", out, "--encoder", "tiny", "--epochs", 10_000)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        assert process.stderr is not None
        assert any("epoch 1/" in line for line in process.stderr)
        result: Result = run("train", "--resume", "--out", out)
        process.send_signal(signal.SIGKILL)
    assert result.code == 4
    assert "another process is training here" in result.err
