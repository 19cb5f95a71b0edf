"""Reading stops at what is no regular file or too large; writing replaces a file in one step."""

import os
import stat
from pathlib import Path

import pytest

from memwrap.storage.files import read_file, write_file


def test_the_content_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="5 bytes"):
        read_file(path, 4)


def test_a_sparse_file_is_refused_by_its_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(OSError, match="too large"):
        read_file(path, 1 << 30)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    with pytest.raises(OSError, match="pipe"):
        read_file(path, 100)


def test_an_endless_device_is_not_opened_through_a_link(tmp_path: Path) -> None:
    path = tmp_path / "zero"
    path.symlink_to("/dev/zero")

    for follow in (False, True):
        with pytest.raises(OSError, match="regular"):
            read_file(path, 100, follow_links=follow)


def test_a_link_to_a_file_is_followed_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    link = tmp_path / "link"
    link.symlink_to("file")

    assert read_file(link, 100, follow_links=True) == b"1"
    with pytest.raises(OSError, match="link"):
        read_file(link, 100)


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644)])
def test_a_written_file_has_the_permissions_of_the_umask(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_file(tmp_path / "file", b"1")
    finally:
        os.umask(before)

    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
