"""JSON of strangers: what takes too much memory, or says two things, is refused before it is used."""

from pathlib import Path

import pytest

from memwrap.errors import LoadError
from memwrap.storage import validation
from memwrap.storage.validation import read_json


def file_with(folder: Path, text: str) -> Path:
    path = folder / "model.json"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("each", "most"),
    [
        ("{}", validation.MOST_GROUPS),
        ("[]", validation.MOST_GROUPS),
        ('{"a":[]}', validation.MOST_GROUPS),
        ("1", validation.MOST_VALUES),
        ('"a"', validation.MOST_TEXTS),
        ('"a":1', validation.MOST_KEYS),
    ],
)
def test_json_of_too_many_things_is_refused_before_it_is_parsed(each: str, most: int, tmp_path: Path) -> None:
    path = file_with(tmp_path, f'{{"x": [{",".join([each] * (most + 2))}]}}')
    assert path.stat().st_size < validation.JSON_LIMIT
    with pytest.raises(LoadError, match=f"more than {most:,}"):
        read_json(path, LoadError)


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '{"x": [{"a": 1, "\\u0061": 2}]}'])
def test_a_key_that_is_given_twice_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="'a' is given twice"):
        read_json(file_with(tmp_path, text), LoadError)
