"""JSON of strangers: what takes too much memory, or says two things, is refused before it is used."""

from pathlib import Path

import pytest

from memwrap.errors import LoadError
from memwrap.storage.validation import JSON_LIMIT, MOST_GROUPS, MOST_VALUES, read_json


def file_with(folder: Path, text: str) -> Path:
    path = folder / "model.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize("group", ["{}", "[]", '{"a":[]}'])
def test_json_of_too_many_groups_is_refused_before_it_is_parsed(group: str, tmp_path: Path) -> None:
    path = file_with(tmp_path, f'{{"x": [{",".join([group] * MOST_GROUPS)}]}}')
    with pytest.raises(LoadError, match=f"more than {MOST_GROUPS:,} objects"):
        read_json(path, LoadError)


@pytest.mark.parametrize("each", ["1", '"a":1'])
def test_json_of_too_many_values_is_refused_before_it_is_parsed(each: str, tmp_path: Path) -> None:
    path = file_with(tmp_path, f'{{"x": [{",".join([each] * (MOST_VALUES + 1))}]}}')
    assert path.stat().st_size < JSON_LIMIT
    with pytest.raises(LoadError, match=f"{MOST_VALUES:,} values"):
        read_json(path, LoadError)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '{"x": [{"a": 1, "\\u0061": 2}]}'])
def test_a_key_that_is_given_twice_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="'a' is given twice"):
        read_json(file_with(tmp_path, text), LoadError)
