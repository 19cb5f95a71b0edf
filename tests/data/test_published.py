"""Published data sets: read from small files of the official layout, fetched from a server on this machine."""

import hashlib
import io
import pickle
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import torch
import torchvision
from sklearn.datasets import load_digits
from torchvision.datasets import CIFAR10, SVHN

from memwrap.data import published
from memwrap.data.dataset import DataSet, InMemoryImages, LabelledImages
from memwrap.data.progress import Report
from memwrap.data.published import CINIC10, cifar10, cinic10, digits, svhn
from memwrap.errors import DataError
from tests.data.test_download import Server
from tests.data.test_download import server as server  # the fixture

BATCHES = [f"data_batch_{number}" for number in range(1, 6)]
LABEL_NAMES = list(CINIC10)  # CIFAR10 has the same


def md5(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def pixels(split: LabelledImages | None) -> torch.Tensor:
    assert split is not None
    assert isinstance(split.images, InMemoryImages)
    return split.images.pixels


def mat(images: np.ndarray, labels: list[int]) -> bytes:
    """images (N, 32, 32, 3), as the house numbers are published: the image's number comes last, and 0 is class 10."""
    file = io.BytesIO()
    classes = np.array([label or 10 for label in labels], dtype=np.uint8)[:, None]
    scipy.io.savemat(file, {"X": images.transpose(1, 2, 3, 0), "y": classes})
    return file.getvalue()


HOUSES = {"train": (noise(6, 32, 32, 3), [1, 0, 9, 3, 0, 5]), "test": (noise(3, 32, 32, 3, seed=1), [2, 0, 7])}


@pytest.fixture
def svhn_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    split_list = {}
    for split, (images, labels) in HOUSES.items():
        name, content = f"{split}_32x32.mat", mat(images, labels)
        server.files[name] = content
        split_list[split] = [server.url(name), name, md5(content)]
    monkeypatch.setattr(SVHN, "split_list", split_list)
    return server


def pickled_batches(seed: int = 0) -> dict[str, bytes]:
    """The six files of CIFAR10, with two images each: rows of 3,072 bytes, all of a channel before the next."""
    files = {}
    for number, name in enumerate([*BATCHES, "test_batch"]):
        labels = [number, 9 - number]
        files[name] = pickle.dumps({"data": noise(2, 3072, seed=seed + number), "labels": labels})
    return files | {"batches.meta": pickle.dumps({"label_names": LABEL_NAMES})}


def tar(files: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def cifar_server(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    files = pickled_batches()
    server.files[CIFAR10.filename] = tar(files)
    monkeypatch.setattr(CIFAR10, "url", server.url(CIFAR10.filename))
    monkeypatch.setattr(CIFAR10, "tgz_md5", md5(server.files[CIFAR10.filename]))
    monkeypatch.setattr(CIFAR10, "train_list", [[name, md5(files[name])] for name in BATCHES])
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", md5(files["test_batch"])]])
    monkeypatch.setattr(CIFAR10, "meta", {**CIFAR10.meta, "md5": md5(files["batches.meta"])})
    return server


class Callback:
    """Keeps the titles and the last count of what it watched."""

    def __init__(self) -> None:
        self.titles: list[str] = []
        self.ended: list[str] = []
        self.last: tuple[int, int | None] | None = None

    @contextmanager
    def __call__(self, title: str) -> Iterator[Report]:
        self.titles.append(title)
        try:
            yield self.count
        finally:
            self.ended.append(title)

    def count(self, done: int, total: int | None) -> None:
        self.last = done, total


# digits


def test_the_digits_are_those_of_scikit_learn_with_white_at_255() -> None:
    data, official = digits(), load_digits()
    assert data.train.images.shape == (1, 8, 8)
    assert pixels(data.train).dtype == torch.uint8
    assert data.train.labels.tolist() == official.target.tolist()
    assert data.train.labels.dtype == torch.int64
    levels = dict(enumerate([0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]))
    expected = np.vectorize(levels.__getitem__)(official.images.astype(int))
    assert np.array_equal(pixels(data.train)[:, 0].numpy(), expected)


def test_the_digits_have_names_and_a_record() -> None:
    data = digits()
    assert (data.name, data.test) == ("digits", None)
    assert data.classes == tuple("0123456789")
    assert (data.train.names[0], data.train.names[-1], len(data.train)) == ("0", "1796", 1797)
    assert data.record == {"kind": "published", "root": None, "size": [8, 8], "held": True}


# SVHN


def test_svhn_is_fetched_and_read_in_its_official_order(svhn_server: Server, tmp_path: Path) -> None:
    data = svhn(tmp_path / "new" / "root")
    for split, part in (("train", data.train), ("test", data.test)):
        images, labels = HOUSES[split]
        assert part is not None
        assert np.array_equal(pixels(part).numpy(), images.transpose(0, 3, 1, 2))
        assert pixels(part).is_contiguous()
        assert part.labels.tolist() == labels
        assert part.labels.dtype == torch.int64
        assert part.names == tuple(f"{split}/{index}" for index in range(len(labels)))
    assert data.classes == tuple("0123456789")
    root = str(tmp_path / "new" / "root")
    assert data.record == {"kind": "published", "root": root, "size": [32, 32], "held": True}


def test_svhn_that_is_there_is_not_fetched_and_shows_no_progress(svhn_server: Server, tmp_path: Path) -> None:
    first = svhn(tmp_path)
    svhn_server.asked.clear()
    callback = Callback()
    assert svhn(tmp_path, callback).fingerprint == first.fingerprint
    assert svhn_server.asked == []
    assert callback.titles == []


def test_svhn_interrupted_is_reported_and_resumed(svhn_server: Server, tmp_path: Path) -> None:
    length = len(svhn_server.files["train_32x32.mat"])
    svhn_server.cut_after = 4000
    message = (
        f"{tmp_path / 'train_32x32.mat'}: 4000 bytes of {length} bytes have arrived from 127.0.0.1 (the connection was "
        "cut); run this again to continue"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        svhn(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["train_32x32.mat.part"]

    svhn_server.cut_after = None
    data = svhn(tmp_path)
    assert svhn_server.asked[1] == ("train_32x32.mat", "bytes=4000-")
    assert np.array_equal(pixels(data.train).numpy(), HOUSES["train"][0].transpose(0, 3, 1, 2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test_32x32.mat", "train_32x32.mat"]


def test_a_damaged_svhn_file_is_downloaded_again(svhn_server: Server, tmp_path: Path) -> None:
    whole = svhn(tmp_path)
    (tmp_path / "test_32x32.mat").write_bytes(b"damaged")
    assert svhn(tmp_path).fingerprint == whole.fingerprint


def test_a_damaged_svhn_file_is_named_when_it_cannot_be_fetched(svhn_server: Server, tmp_path: Path) -> None:
    (tmp_path / "train_32x32.mat").write_bytes(b"damaged")
    svhn_server.files.clear()
    message = f"^{re.escape(str(tmp_path / 'train_32x32.mat'))}: .*404.*the file that is there is damaged"
    with pytest.raises(DataError, match=message):
        svhn(tmp_path)


def test_progress_has_a_title_for_each_file_and_counts_to_its_end(svhn_server: Server, tmp_path: Path) -> None:
    callback = Callback()
    svhn(tmp_path, callback)
    assert callback.titles == callback.ended == ["downloading train_32x32.mat", "downloading test_32x32.mat"]
    length = len(svhn_server.files["test_32x32.mat"])
    assert callback.last == (length, length)


# CIFAR10


def test_cifar10_is_fetched_unpacked_and_read_in_its_official_order(cifar_server: Server, tmp_path: Path) -> None:
    callback = Callback()
    data = cifar10(tmp_path, callback)
    expected = np.concatenate([noise(2, 3072, seed=number) for number in range(5)]).reshape(-1, 3, 32, 32)
    assert np.array_equal(pixels(data.train).numpy(), expected)
    assert pixels(data.train).is_contiguous()
    assert data.train.labels.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.train.names[3] == "train/3"
    assert np.array_equal(pixels(data.test).numpy(), noise(2, 3072, seed=5).reshape(-1, 3, 32, 32))
    assert data.test is not None
    assert data.test.labels.tolist() == [5, 4]
    assert data.classes == tuple(LABEL_NAMES)
    assert data.record == {"kind": "published", "root": str(tmp_path), "size": [32, 32], "held": True}
    assert callback.titles == ["downloading cifar-10-python.tar.gz"]


def test_cifar10_interrupted_is_reported_and_resumed(cifar_server: Server, tmp_path: Path) -> None:
    cifar_server.cut_after = 10_000
    with pytest.raises(DataError, match=r"10000 bytes of .* run this again to continue"):
        cifar10(tmp_path)
    cifar_server.cut_after = None
    assert len(cifar10(tmp_path).train) == 10
    assert cifar_server.ranges == [None, "bytes=10000-"]


@pytest.mark.parametrize("name", ["data_batch_3", "batches.meta"])
def test_a_damaged_batch_is_unpacked_again_without_fetching(cifar_server: Server, tmp_path: Path, name: str) -> None:
    whole = cifar10(tmp_path)
    (tmp_path / "cifar-10-batches-py" / name).write_bytes(b"damaged")
    assert cifar10(tmp_path).fingerprint == whole.fingerprint
    assert len(cifar_server.asked) == 1


def test_unpacked_batches_are_enough(cifar_server: Server, tmp_path: Path) -> None:
    cifar10(tmp_path)
    (tmp_path / CIFAR10.filename).unlink()
    assert len(cifar10(tmp_path).train) == 10
    assert len(cifar_server.asked) == 1


def test_several_at_once_fetch_and_unpack_once(
    cifar_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[str] = []
    unpack = torchvision.datasets.utils.extract_archive
    monkeypatch.setattr(
        torchvision.datasets.utils, "extract_archive", lambda *paths: (unpacked.append(paths[0].name), unpack(*paths))
    )
    with ThreadPoolExecutor(4) as pool:
        prints = {done.result().fingerprint for done in [pool.submit(cifar10, tmp_path) for _ in range(4)]}
    assert prints == {cifar10(tmp_path).fingerprint}
    assert unpacked == ["cifar-10-python.tar.gz"]
    assert len(cifar_server.asked) == 1


def test_an_archive_with_wrong_batches_is_named_with_what_to_do(
    cifar_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CIFAR10, "test_list", [["test_batch", "0" * 32]])
    message = f"^{re.escape(str(tmp_path / CIFAR10.filename))}: cannot be used .*remove it and run this again"
    with pytest.raises(DataError, match=message):
        cifar10(tmp_path)


def test_nothing_is_unpickled_before_its_checksum_is_right(cifar_server: Server, tmp_path: Path) -> None:
    cifar10(tmp_path)
    (tmp_path / CIFAR10.filename).unlink()
    cifar_server.files.clear()

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
            return Path.touch, (tmp_path / "sprung",)

    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="404"):
        cifar10(tmp_path)
    assert not (tmp_path / "sprung").exists()


# CINIC10


class Reader:
    """Gives what reading CINIC10's folder would, with images that take no memory, and keeps which it was asked for."""

    def __init__(self, classes: tuple[str, ...] = CINIC10, count: int = 90_000) -> None:
        images = InMemoryImages(torch.zeros(1, 3, 32, 32, dtype=torch.uint8).expand(count, -1, -1, -1))
        split = LabelledImages(images, torch.zeros(count, dtype=torch.long), ("",) * count)
        record = {"kind": "folder", "left out": "valid"}
        self.data = DataSet("somewhere", classes, split, split, "print", record, ("a note",))
        self.asked: list[Path] = []

    def __call__(self, path: Path) -> DataSet:
        self.asked.append(path)
        return self.data


@pytest.mark.parametrize("name", ["", "cinic10", "CINIC-10"])
def test_cinic10_is_read_from_where_it_was_unpacked(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "train").mkdir(parents=True)
    reader = Reader()
    data = cinic10(tmp_path, reader)
    assert reader.asked == [tmp_path / name]
    assert (data.name, data.fingerprint, data.warnings) == ("cinic10", "print", ("a note",))
    assert data.record == {"kind": "published", "root": str(tmp_path / name), "left out": "valid"}


def test_cinic10_that_is_not_there_names_the_download(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"https://datashare\.ed\.ac\.uk/handle/10283/3192") as error:
        cinic10(tmp_path, Reader())
    assert all(str(folder) in str(error.value) for folder in (tmp_path, tmp_path / "cinic10", tmp_path / "CINIC-10"))


def test_another_data_set_is_not_mistaken_for_cinic10(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}: has the classes cat, dog; CINIC10 has airplane,")):
        cinic10(tmp_path, Reader(("cat", "dog")))


def test_cinic10_with_images_missing_comes_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    data = cinic10(tmp_path, Reader(count=89_999))
    assert len(data.warnings) == 3
    assert data.warnings[1].startswith("cinic10: train/ has 89,999 images; 90,000 were published")


# All of them


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'mnist' .*digits, svhn, cifar10, cinic10"):
        published.open_published("mnist", tmp_path, Reader(), None)


def test_the_fingerprint_changes_with_name_classes_labels_pixels_and_splits() -> None:
    pixels, labels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    other = pixels.clone()
    other[1, 0, 1, 1] = 1
    made = [
        published._build(*arguments).fingerprint
        for arguments in (
            ("a", None, ("x", "y"), (pixels, labels), None),
            ("b", None, ("x", "y"), (pixels, labels), None),
            ("a", None, ("xy", ""), (pixels, labels), None),
            ("a", None, ("x", "y"), (pixels, labels.flip(0)), None),
            ("a", None, ("x", "y"), (other, labels), None),
            ("a", None, ("x", "y"), (other.flip(0), labels), None),
            ("a", None, ("x", "y"), (pixels.reshape(2, 1, 1, 4), labels), None),
            ("a", None, ("x", "y"), (pixels, labels), (pixels, labels)),
            ("a", None, ("x", "y"), (pixels, labels), (other, labels)),
        )
    ]
    assert len(set(made)) == len(made)
    # Elsewhere it is the same data set.
    assert published._build("a", Path("/there"), ("x", "y"), (pixels, labels), None).fingerprint == made[0]


@pytest.mark.parametrize(
    ("module", "library", "read"),
    [
        ("sklearn.datasets", "scikit-learn", lambda _: digits()),
        ("scipy.io", "scipy", svhn),
        ("torchvision.datasets", "torchvision", svhn),
        ("torchvision.datasets", "torchvision", cifar10),
    ],
)
def test_a_missing_library_is_reported_before_anything_is_fetched(
    module: str, library: str, read: Callable[[Path], DataSet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    with pytest.raises(DataError, match=f"needs {library}, which is not installed: pip install {library}"):
        read(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["svhn", "cifar10"])
def test_a_file_of_a_terabyte_is_not_read_for_its_checksum(tmp_path: Path, name: str) -> None:
    place = {"svhn": "train_32x32.mat", "cifar10": "cifar-10-batches-py/data_batch_1"}[name]
    (tmp_path / place).parent.mkdir(exist_ok=True)
    with (tmp_path / place).open("wb") as file:
        file.truncate(1 << 40)  # sparse: it takes no space
    with pytest.raises(DataError, match=str(1 << 40)):
        published.open_published(name, tmp_path, lambda _: None, None)


def test_pickles_of_a_stranger_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR10's files are pickles, which can run code: only those with the published checksums are read."""
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (ran,)

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(pickle.dumps(Evil()))

    def fail(*_: object) -> None:
        raise DataError("no network")

    monkeypatch.setattr(published, "_download", fail)
    with pytest.raises(DataError, match="no network"):
        published.cifar10(tmp_path)
    assert not ran.exists()
    pickle.loads((folder / "test_batch").read_bytes())  # it would have
    assert ran.exists()
