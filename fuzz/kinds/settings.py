"""Files of settings."""

import json
from pathlib import Path
from random import Random

from fuzz.genuine import Genuine
from fuzz.mutations import change_json, dump_json, odd_value
from fuzz.sandbox import Case
from tests.data.hostile import mutate

SETTINGS = (
    "recipe",
    "encoder",
    "variant",
    "epochs",
    "batch_size",
    "samples",
    "augment",
    "drops",
    "mean",
    "std",
    "weights",
)


def make_settings(draw: Random, genuine: Genuine, folder: Path) -> Case:
    """A file of settings, read as train --config does. Nothing is trained: valid settings may ask for a week."""
    path = folder / draw.choice(("settings.yaml", "run.json"))
    content, words = _settings_file(draw, genuine)
    path.write_bytes(content)
    return Case(lambda: _read_settings(path), words)


def _read_settings(path: Path) -> bool:
    from memwrap.cli.train import check_early, chosen_settings

    _, chosen = chosen_settings("digits", None, path, {})
    check_early(chosen)
    return True


def _settings_file(draw: Random, genuine: Genuine) -> tuple[bytes, str]:
    plain = {
        "recipe": "default",
        "encoder": "tiny",
        "epochs": 3,
        "drops": [0.5, 0.75],
        "augment": ["shift"],
        "mean": [0.5],
    }
    match draw.randrange(9):
        case 0 | 1:
            return dump_json(draw, change_json(draw, plain, str(genuine.bait))), "settings changed"
        case 2:
            return mutate((genuine.run("digits") / "run.json").read_bytes(), draw), "run.json changed"
        case 3:
            value = json.loads((genuine.run("digits") / "run.json").read_text())
            return dump_json(draw, change_json(draw, value, str(genuine.bait))), "run.json with other values"
        case 4:
            name = draw.choice(SETTINGS)
            return json.dumps({name: odd_value(draw, str(genuine.bait))}).encode(), f"an odd {name}"
        case 5:
            depth, width = draw.choice(((3, 3), (9, 9), (30, 2), (8, 30)))
            lines = [f"a0: &a0 [{', '.join(['x'] * width)}]"]
            lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, depth)]
            return (
                "\n".join(lines) + f"\nepochs: *a{depth - 1}\n"
            ).encode(), f"aliases, {width} to the power of {depth}"
        case 6:
            tag = draw.choice(
                ("!!python/object/apply:os.mkdir [x]", "!!python/name:os.system", "!!binary =", "!!timestamp x")
            )
            return f"epochs: {tag}\n".encode(), f"the tag {tag}"
        case 7:
            text = draw.choice(
                (
                    "<<: *x",
                    "a: &a [*a]",
                    "epochs: &a {<<: *a}",
                    "? [a, {b: c}] : 1",
                    "? {a: b} : 1",
                    "1: 2\ntrue: 3\nnull: 4",
                    "epochs: 1_000_000:59:59.5e999",
                    "epochs: 0x" + "f" * 100_000,
                    "epochs: " + "9" * draw.choice((4000, 5000, 2_000_000)),
                    "a: " * 2000,
                    "- " * draw.choice((1000, 100_000)),
                    "[" * draw.choice((900, 5000, 1_000_000)),
                    "epochs: 2024-13-45",
                    "---\na: 1\n---\nb: 2",
                    "\t",
                    "epochs: !!int '0b'",
                    "seed: 1" + " " * (5 << 20) + "\n",
                    "# comment\n" * 500_000,
                    "\n".join(f"k{n}: {n}" for n in range(50_000)),
                    "{" + ", ".join(f"k{n}: &b{n} {n}" for n in range(20_000)) + "}",
                )
            )
            return text.encode(), f"YAML {text[:40]!r}"
        case _:
            plain_text = b"recipe: default\nepochs: 3\ndrops: [0.5, 0.75]\nmean: &m [0.5]\nstd: *m\n"
            return mutate(plain_text, draw), "bytes changed"
