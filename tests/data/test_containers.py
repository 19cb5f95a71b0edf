"""Folders and zips: the same names from both, and no zip that is more than a zip of files."""

import multiprocessing
import os
import pickle
import re
import socket
import stat
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memwrap.data import containers, zip_directory
from memwrap.data.containers import Folder, ZipArchive, open_container
from memwrap.errors import DataError
from tests.data import hostile

FILES = {
    "cat/1.jpg": b"one",
    "cat/more/2.jpg": b"two" * 1000,
    "dog/3.jpg": b"",
    "README.txt": b"hello",
}
SYSTEM = [
    "._1.jpg",
    ".DS_Store",
    "cat/Thumbs.db",
    "cat/DESKTOP.INI",
    ".git/1.jpg",
    "__MACOSX/cat/1.jpg",
    "cat/.x/y.jpg",
]


def folder_of(path: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def zip_of(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, method)
    return path


@pytest.fixture(params=["folder", "zip"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> containers.Container:
    """A container with FILES, an empty folder "fish" and what systems leave behind."""
    files = FILES | dict.fromkeys(SYSTEM, b"x")
    if request.param == "folder":
        (tmp_path / "photos" / "fish").mkdir(parents=True)
        return open_container(folder_of(tmp_path / "photos", files))
    path = zip_of(tmp_path / "photos.zip", files)
    with zipfile.ZipFile(path, "a") as archive:
        archive.mkdir("fish")
    return open_container(path)


def test_files_and_folders_are_listed_without_what_systems_leave(both: containers.Container) -> None:
    assert both.names() == ["README.txt", "cat/1.jpg", "cat/more/2.jpg", "dog/3.jpg"]
    assert both.folders() == ["cat", "cat/more", "dog", "fish"]


def test_contents_are_read(both: containers.Container) -> None:
    assert {name: both.read(name) for name in both.names()} == FILES


def test_sizes_are_those_of_the_contents(both: containers.Container) -> None:
    assert {name: both.size(name) for name in both.names()} == {name: len(content) for name, content in FILES.items()}


def test_contents_are_read_by_many_threads(both: containers.Container) -> None:
    names = both.names() * 50
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(both.read, names)) == [FILES[name] for name in names]


def read_into(container: containers.Container, results: "multiprocessing.Queue[dict[str, bytes]]") -> None:
    results.put({name: container.read(name) for name in container.names()})


def by_processes(container: containers.Container, method: str, count: int) -> list[dict[str, bytes]]:
    context = multiprocessing.get_context(method)
    results = context.Queue()
    children = [context.Process(target=read_into, args=(container, results)) for _ in range(count)]
    for child in children:
        child.start()
    found = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    return found


def test_contents_are_read_by_forked_processes(both: containers.Container) -> None:
    both.read("cat/1.jpg")
    assert by_processes(both, "fork", 2) == [FILES, FILES]


def test_a_zip_is_read_by_a_process_that_starts_afresh(tmp_path: Path) -> None:
    archive = ZipArchive(zip_of(tmp_path / "a.zip", FILES))
    archive.read("cat/1.jpg")
    assert by_processes(archive, "spawn", 1) == [FILES]


def test_only_the_path_of_a_zip_travels(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {f"cat/{number}.jpg": b"x" for number in range(1000)})
    assert len(pickle.dumps(ZipArchive(path))) < 1000


def test_stored_entries_are_read(tmp_path: Path) -> None:
    assert ZipArchive(zip_of(tmp_path / "a.zip", FILES, zipfile.ZIP_STORED)).read("cat/1.jpg") == b"one"


def test_data_before_a_zip_do_not_matter(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", FILES)
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    assert open_container(path).read("cat/1.jpg") == b"one"


def test_backslashes_part_folders(tmp_path: Path) -> None:
    archive = ZipArchive(zip_of(tmp_path / "a.zip", {"cat\\1.jpg": b"one", "./dog//2.jpg": b"two"}))
    assert archive.names() == ["cat/1.jpg", "dog/2.jpg"]
    assert archive.folders() == ["cat", "dog"]
    assert archive.read("cat/1.jpg") == b"one"


def test_linked_folders_are_not_followed_but_seen(tmp_path: Path) -> None:
    folder_of(tmp_path / "elsewhere", {"1.jpg": b"one"})
    folder = Folder(folder_of(tmp_path / "photos", {"cat/1.jpg": b"one"}))
    (tmp_path / "photos" / "cat" / "more").symlink_to(tmp_path / "elsewhere")
    assert folder.names() == ["cat/1.jpg", "cat/more"]
    with pytest.raises(DataError, match="a link to a folder, which is not followed"):
        folder.read("cat/more")


def test_a_linked_file_is_read(tmp_path: Path) -> None:
    folder_of(tmp_path, {"1.jpg": b"one", "photos/cat/2.jpg": b"two"})
    (tmp_path / "photos" / "cat" / "1.jpg").symlink_to(tmp_path / "1.jpg")
    assert Folder(tmp_path / "photos").read("cat/1.jpg") == b"one"


def test_unreadable_files_give_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(folder_of(tmp_path, {"large.jpg": b"123"}))
    (tmp_path / "dangling.jpg").symlink_to(tmp_path / "gone")
    os.mkfifo(tmp_path / "pipe.jpg")
    assert folder.names() == ["dangling.jpg", "large.jpg", "pipe.jpg"]
    with pytest.raises(DataError, match="cannot be read: No such file"):
        folder.read("dangling.jpg")
    with pytest.raises(DataError, match="a pipe"):
        folder.read("pipe.jpg")
    monkeypatch.setattr(containers, "FILE_LIMIT", 2)
    with pytest.raises(DataError, match="too large: 3 bytes"):
        folder.read("large.jpg")


def test_a_folder_that_cannot_be_listed_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder_of(tmp_path, FILES)
    scan = os.scandir

    def forbidding(path: str | Path) -> object:
        if str(path).endswith("cat"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    with pytest.raises(DataError, match=r"cat: the folder cannot be read .Permission denied"):
        Folder(tmp_path).names()


def test_what_is_neither_folder_nor_zip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: does not exist; expected a folder or a zip"):
        open_container(tmp_path / "gone")
    (tmp_path / "a.txt").write_bytes(b"text")
    with pytest.raises(DataError, match=r"a.txt: is neither a folder nor a zip"):
        open_container(tmp_path / "a.txt")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="pipe: is neither a folder nor a file"):
        open_container(tmp_path / "pipe")


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_truncated_zip_is_called_damaged(tmp_path: Path, kept: float) -> None:
    path = zip_of(tmp_path / "a.zip", FILES)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * kept)])
    with pytest.raises(DataError, match="is a damaged zip"):
        open_container(path)


def test_damage_within_a_zip_is_found_when_it_is_read(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {"a.jpg": b"hello", "b.jpg": b"fine"}, zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes().replace(b"hello", b"hullo"))
    archive = open_container(path)
    with pytest.raises(DataError, match="damaged in the zip: BadZipFile: Bad CRC-32"):
        archive.read("a.jpg")
    assert archive.read("b.jpg") == b"fine"


def test_a_zip_that_is_replaced_meanwhile_is_not_misread(tmp_path: Path) -> None:
    archive = ZipArchive(zip_of(tmp_path / "a.zip", FILES))
    (tmp_path / "a.zip").write_bytes(b"something else entirely, of no particular length" * 100)
    with pytest.raises(DataError, match="damaged in the zip"):
        archive.read("cat/1.jpg")


def test_an_entry_is_not_read_from_where_none_begins(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", FILES)
    path.write_bytes(b"xx" + path.read_bytes()[2:])
    with pytest.raises(DataError, match="damaged in the zip: BadZipFile: no entry begins at the offset"):
        open_container(path).read("cat/1.jpg")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("../1.jpg", "leads out of the zip"),
        ("cat/../../1.jpg", "leads out of the zip"),
        ("..\\1.jpg", "leads out of the zip"),
        (".git/../../x", "leads out of the zip"),
        ("/etc/passwd", "absolute name"),
        ("\\\\server\\x", "absolute name"),
        ("C:\\x.jpg", "absolute name"),
        ("c:x.jpg", "absolute name"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str, fault: str) -> None:
    path = zip_of(tmp_path / "a.zip", {"cat/1.jpg": b"one", name: b"x"})
    with pytest.raises(DataError, match=f"{re.escape(repr(name))} has (a|an) .*{fault}"):
        open_container(path)


def test_links_in_a_zip_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        link = zipfile.ZipInfo("cat/1.jpg")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
    with pytest.raises(DataError, match=r"'cat/1.jpg' is a symbolic link"):
        open_container(tmp_path / "a.zip")


@pytest.mark.parametrize("flag", [0x1, 0x40])
def test_encrypted_entries_are_refused(tmp_path: Path, flag: int) -> None:
    path = zip_of(tmp_path / "a.zip", {"cat/1.jpg": b"one"})
    content = bytearray(path.read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= flag
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"'cat/1.jpg' is encrypted"):
        open_container(path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("second", ["cat/1.jpg", "cat\\1.jpg", "./cat/1.jpg"])
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, second: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("cat/1.jpg", b"one")
        archive.writestr(second, b"two")
    with pytest.raises(DataError, match=f"{re.escape(repr(second))} occurs twice"):
        open_container(tmp_path / "a.zip")


def test_unusual_compression_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'cat/1.jpg' has an unsupported compression .method 12"):
        open_container(zip_of(tmp_path / "a.zip", {"cat/1.jpg": b"one"}, zipfile.ZIP_BZIP2))


def test_entries_that_share_their_data_are_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {"cat/1.jpg": b"one", "cat/2.jpg": b"two"})
    content = bytearray(path.read_bytes())
    second = content.rindex(b"PK\x01\x02")
    content[second + 42 : second + 46] = struct.pack("<I", 5)  # the offset of its local header
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"'cat/2.jpg' overlaps another"):
        open_container(path)


def declare(path: Path, size: int) -> Path:
    """Declare in the zip's directory that its last entry unpacks to this size."""
    content = bytearray(path.read_bytes())
    last = content.rindex(b"PK\x01\x02")
    content[last + 24 : last + 28] = struct.pack("<I", size)
    path.write_bytes(content)
    return path


def test_an_entry_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    path = zip_of(tmp_path / "a.zip", {"cat/1.jpg": b"one"})
    with pytest.raises(DataError, match=r"'cat/1.jpg' unpacks to 402653185 bytes"):
        open_container(declare(path, (384 << 20) + 1))


def test_a_zip_that_grows_beyond_measure_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zip_of(tmp_path / "a.zip", {"cat/1.jpg": bytes(1 << 20)})  # deflates 1000:1
    assert open_container(path).names() == ["cat/1.jpg"]  # as long as it is small
    monkeypatch.setattr(zip_directory, "UNPACKED_LIMIT", 1 << 19)
    with pytest.raises(DataError, match=r"unpacks from \d+ to 1048576 bytes, most of them in 'cat/1.jpg'"):
        open_container(path)
    monkeypatch.undo()
    declare(path, (256 << 20) + 1)
    with pytest.raises(DataError, match="to 268435457 bytes"):
        open_container(path)


def test_an_entry_that_unpacks_to_more_than_it_declares_is_damaged(tmp_path: Path) -> None:
    path = declare(zip_of(tmp_path / "a.zip", {"cat/1.jpg": bytes(1 << 20)}), 100)
    with pytest.raises(DataError, match="damaged in the zip: BadZipFile"):
        open_container(path).read("cat/1.jpg")


def test_an_entry_that_unpacks_to_less_than_it_declares_is_damaged(tmp_path: Path) -> None:
    path = declare(zip_of(tmp_path / "a.zip", {"cat/1.jpg": b"one"}), 100)
    with pytest.raises(DataError, match="damaged in the zip"):
        open_container(path).read("cat/1.jpg")


@pytest.mark.parametrize("depth", [33, 1200, 30000])
def test_deep_names_in_a_zip_are_refused_at_once(tmp_path: Path, depth: int) -> None:
    (tmp_path / "a.zip").write_bytes(hostile.zip_of_deep_names(3, depth))
    started = time.process_time()
    with pytest.raises(DataError, match="a/a/a"):
        open_container(tmp_path / "a.zip").folders()
    assert time.process_time() - started < 1


def test_a_long_name_in_a_zip_is_refused_and_not_shown_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(hostile.zip_of_names([b"cat/1.png", b"cat/" + b"n" * 65000]))
    with pytest.raises(DataError, match="65004") as error:
        open_container(tmp_path / "a.zip")
    assert len(str(error.value)) < 1000


def test_a_directory_that_is_said_to_be_large_is_not_read(tmp_path: Path) -> None:
    end = hostile.zip_of_entries([], count=1, directory_size=1 << 30, directory_offset=0)
    with (tmp_path / "a.zip").open("wb") as file:
        file.truncate(1 << 30)  # sparse: it takes no space
        file.seek(0, os.SEEK_END)
        file.write(end)
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match=str(1 << 30)):
            open_container(tmp_path / "a.zip")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


def test_extra_fields_that_take_long_to_parse_are_refused(tmp_path: Path) -> None:
    entries = [hostile.Entry(b"cat/%d" % n, extra=struct.pack("<HH", 99, 0) * 16000) for n in range(30)]
    (tmp_path / "a.zip").write_bytes(hostile.zip_of_entries(entries))
    started = time.process_time()
    with pytest.raises(DataError, match="64000"):
        open_container(tmp_path / "a.zip")
    assert time.process_time() - started < 0.5


def test_the_number_of_entries_and_folders_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.zip").write_bytes(hostile.zip_of_deep_names(10, 30))
    archive = open_container(tmp_path / "a.zip")
    assert (len(archive.names()), len(archive.folders())) == (10, 300)
    monkeypatch.setattr(containers, "FOLDERS_LIMIT", 299)
    with pytest.raises(DataError, match="more than 299 folders"):
        archive.folders()
    monkeypatch.setattr(zip_directory, "ENTRIES_LIMIT", 9)
    with pytest.raises(DataError, match="10 entries; at most 9"):
        open_container(tmp_path / "a.zip")


def test_names_in_a_zip_are_held_once(tmp_path: Path) -> None:
    """An emoji makes each character take four bytes, and names with a backslash are not kept as they were."""
    names = [f"\N{GRINNING FACE}\\{number}{'x' * 900}.png" for number in range(4000)]
    entries = [hostile.Entry(name.encode(), flags=0x800) for name in names]
    (tmp_path / "a.zip").write_bytes(hostile.zip_of_entries(entries))
    tracemalloc.start()
    try:
        opened = open_container(tmp_path / "a.zip")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert opened.names()[0] == names[0].replace("\\", "/")
    once = sum(map(sys.getsizeof, names))
    assert once < held < 1.5 * once
    assert peak < 2.2 * once  # with the directory, and what zipfile makes of it


def test_70000_entries_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(hostile.zip_of_names(b"c%d/%d" % (n % 7, n) for n in range(70000)))
    archive = open_container(tmp_path / "a.zip")
    assert len(archive.names()) == 70000
    assert archive.folders() == [f"c{n}" for n in range(7)]
    assert archive.read("c6/69999") == b"x"


@pytest.fixture
def deep(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed by a program which is not afraid of depth, as pytest is."""
    yield tmp_path
    subprocess.run(["rm", "-rf", *tmp_path.iterdir()], check=True)


def nest(path: Path, levels: int, name: str = "d") -> None:
    """Create folders within each other, deeper than a path can say."""
    before = Path.cwd()
    os.chdir(path)
    try:
        for _ in range(levels):
            os.mkdir(name)  # noqa: PTH102 - a path would be too long
            os.chdir(name)
    finally:
        os.chdir(before)


@pytest.mark.parametrize("levels", [33, 1200, 5000])
def test_deep_folders_are_refused(deep: Path, levels: int) -> None:
    nest(deep, levels)
    for list_all in (Folder(deep).names, Folder(deep).folders):
        with pytest.raises(DataError, match="more than 32 folders"):
            list_all()


def test_folders_as_deep_as_people_make_them_are_read(tmp_path: Path) -> None:
    nest(tmp_path, 32)
    assert len(Folder(tmp_path).folders()) == 32
    assert Folder(tmp_path).names() == []


def test_a_folder_whose_path_is_too_long_is_named(deep: Path) -> None:
    nest(deep, 20, "d" * 250)
    with pytest.raises(DataError, match=r"cannot be read .File name too long"):
        Folder(deep).names()


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with (tmp_path / "sparse.png").open("wb") as file:
        file.truncate(1 << 40)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket.png"))
        (tmp_path / "zero.png").symlink_to("/dev/zero")
        (tmp_path / "loop.png").symlink_to("loop.png")
        os.mkfifo(tmp_path / "pipe.png")
        assert len(folder.names()) == 5
        for name in folder.names():
            with pytest.raises(DataError, match="cannot be read"):
                folder.read(name)


def test_a_folder_that_may_not_be_entered_gives_a_reason(tmp_path: Path) -> None:
    """Without the x-bit names are listed but files cannot be opened; without the r-bit nothing is listed."""
    folder_of(tmp_path, {"cat/1.png": b"x", "dog/2.png": b"x"})
    code = (
        "import os, sys\nfrom pathlib import Path\nfrom memwrap.data.containers import open_container\n"
        "from memwrap.errors import DataError\n"
        "os.chdir(sys.argv[1])\n"
        "if os.getuid() == 0:\n    os.setuid(65534)\n"
        "folder = open_container(Path('.'))\n"
        "try:\n    print(folder.names())\n    folder.read('cat/1.png')\nexcept DataError as error:\n    print(error)\n"
    )
    tmp_path.chmod(0o755)
    for mode in (0o444, 0o333):
        (tmp_path / "cat").chmod(mode)
        found = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
        (tmp_path / "cat").chmod(0o755)
        assert found.returncode == 0, found.stderr
        assert "Permission denied" in found.stdout
