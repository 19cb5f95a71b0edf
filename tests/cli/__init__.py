"""How commands are run in these tests: most within this process, which is quick, some in processes of their own."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from memwrap.cli.app import main
from memwrap.cli.signals import SIGNALS

QUICK = ("--encoder", "tiny", "--epochs", "2")

# To be run before a command in a process of its own, in which no connection can be made.
NO_NETWORK = """
import socket
def refused(*_, **__):
    raise OSError("the network is blocked")
socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refused
"""


@dataclass(frozen=True)
class Result:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """All that is on stdout, which must be JSON as the standard has it."""

        def refuse(constant: str) -> None:
            raise AssertionError(f"{constant} is not JSON")

        return json.loads(self.out, parse_constant=refuse)


def run(*arguments: object) -> Result:
    """The command, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with (
        patch.object(sys, "argv", ["memwrap", *map(str, arguments)]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ending:
            code = int(ending.code or 0)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return Result(code, out.getvalue(), err.getvalue())


def succeeds(*arguments: object) -> Result:
    result = run(*arguments)
    assert result.code == 0, result.err
    return result


def fails(code: int, *arguments: object) -> str:
    """What a command that ends with this code says on stderr, which is meant for people."""
    result = run(*arguments)
    assert result.code == code, result.err
    assert "Traceback" not in result.err
    assert "unexpected" not in result.err
    return result.err


def environment(**others: str) -> dict[str, str]:
    """For processes: one thread each and the tests' cache, as here, and no wish of the one who runs the tests."""
    unwanted = re.compile("FORCE_COLOR|NO_COLOR|TTY_|COLUMNS|MEMWRAP_|HF_|PYTEST_|COV_")
    own = {name: value for name, value in os.environ.items() if not unwanted.match(name)}
    kept = {"OMP_NUM_THREADS": "1", "TERM": "xterm-256color", "MEMWRAP_DATA": os.environ["MEMWRAP_DATA"]}
    return own | kept | others


def program(*arguments: object, before: str = "") -> list[str]:
    """The command line of a process; `before` is Python to be run in it before the command."""
    words = [str(argument) for argument in arguments]
    if not before:
        return [sys.executable, "-m", "memwrap", *words]
    script = f"{before}\nimport sys\nfrom memwrap.cli.app import main\nsys.argv[0] = 'memwrap'\nmain()"
    return [sys.executable, "-c", script, *words]


def run_apart(*arguments: object, before: str = "", **environ: str) -> Result:
    """The command, in a process of its own."""
    ended = subprocess.run(
        program(*arguments, before=before), capture_output=True, text=True, env=environment(**environ), timeout=120
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)


def picture(path: Path, level: int, seed: int, size: int = 8) -> Path:
    """A noisy picture file, more or less dark."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 60, (size, size, 3), dtype=np.uint8)
    Image.fromarray(noise + np.uint8(level)).save(path)
    return path


def photos(path: Path, classes: Sequence[str] = ("cat", "dog"), count: int = 10, seed: int = 0) -> Path:
    """A folder with a folder of pictures for each class, which can be told apart."""
    for number, name in enumerate(classes):
        for index in range(count):
            level = 180 * number // max(1, len(classes) - 1)
            picture(path / name / f"{index}.png", level, seed + 1000 * number + index)
    return path


def record(path: Path, name: str = "run.json") -> Any:
    return json.loads((path / name).read_text())


def weights(path: Path) -> dict[str, Tensor]:
    """Of a run."""
    return load_file(path / record(path, "model.json")["files"]["weights"]["name"])


def same_weights(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)
