"""What several kinds of cases call."""

from pathlib import Path
from typing import Any


def command(*arguments: object) -> bool:
    """Run a command of memwrap in this process; its errors are raised. Whether it ended with 0."""
    import click

    from memwrap.cli.app import app
    from memwrap.cli.failures import report
    from memwrap.errors import MemwrapError

    try:
        code = app([str(each) for each in arguments], prog_name="memwrap", standalone_mode=False)
    except click.ClickException:
        return False
    except MemwrapError as error:
        report(error, debug=False)  # printing it can fail too
        raise
    return not code


def read_as_data(path: Path, options: dict[str, Any]) -> bool:
    """Read a folder or zip as a data set."""
    from memwrap.data import read_folder

    data = read_folder(path, **options)
    for split in filter(None, (data.train, data.test)):
        assert len(split.labels) == len(split)
    return True
