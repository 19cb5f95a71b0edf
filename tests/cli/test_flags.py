"""Every setting has a flag, every flag reaches the run, and the help that explains them comes at once."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import typer.main
import yaml
from safetensors.torch import save_file

import memwrap
from memwrap.cli.app import app
from memwrap.cli.train import chosen_settings
from memwrap.errors import SettingsError
from memwrap.training.recipes import RECIPES
from memwrap.training.settings import Settings
from tests.cli import Result, environment, fails, photos, record, run, run_apart, same_weights, succeeds

SETTINGS = list(Settings.model_fields)

# A value for each, other than that of any recipe that is taken here, all of which go together.
VALUES: dict[str, Any] = {
    "samples": 12,
    "validation": 0.1,
    "test": 4.0,
    "size": 32,
    "fit": "pad",
    "skip_bad": True,
    "encoder": "timm:test_resnet",
    "variant": "only_memory",
    "head": "linear",
    "project": 5,
    "scale": 2.0,
    "pretrained": True,
    "weights": "",  # made by the test
    "freeze": True,
    "memory": "balanced",
    "memory_size": 7,
    "contrast": 0.25,
    "remember": 9,
    "epochs": 1,
    "batch_size": 6,
    "optimizer": "sgd",
    "lr": 0.02,
    "momentum": 0.5,
    "weight_decay": 0.001,
    "clip": 0.7,
    "schedule": "steps",
    "drops": [0.25, 0.75],
    "warmup": 0.3,
    "label_smoothing": 0.05,
    "augment": ["shift", "erase"],
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
    "precision": "fp32",
    "seed": 3,
}


def as_flags(values: dict[str, Any]) -> list[str]:
    """The settings as one types them."""
    flags = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    return flags


def parameters() -> dict[str, Any]:
    """The flags of train, by name."""
    command: Any = typer.main.get_command(app)
    return {parameter.name: parameter for parameter in command.commands["train"].params}


def test_every_setting_has_a_flag_of_its_name_and_words_in_the_help() -> None:
    assert set(SETTINGS) <= parameters().keys()
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in parameters()[name].opts
        assert field.description in parameters()[name].help


def test_every_flag_reaches_the_record_and_a_file_gives_the_same_run(tmp_path: Path) -> None:
    data = photos(tmp_path / "photos", count=12)
    weights = tmp_path / "weights.safetensors"
    save_file(timm.create_model("test_resnet").state_dict(), weights)
    values = VALUES | {"weights": str(weights)}
    assert list(values) == SETTINGS
    assert [name for name in values if getattr(RECIPES["frozen"], name) == values[name]] == ["freeze"]
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(values))

    succeeds("train", data, "--out", tmp_path / "flags", *as_flags(values), "--no-evaluate")
    succeeds("train", data, "--out", tmp_path / "file", "--config", file, "--no-evaluate")

    for run_name in ("flags", "file"):
        assert record(tmp_path / run_name)["settings"] == values
        assert record(tmp_path / run_name)["recipe"] == "frozen"
    assert same_weights(tmp_path / "flags", tmp_path / "file")


def test_flags_go_before_the_file_and_the_file_before_the_recipe(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("recipe: finetune\nlr: 1e-4\nclip: 3\n")
    name, settings = chosen_settings("photos", None, file, {"clip": 5.0})
    assert (name, settings.lr, settings.clip) == ("finetune", 1e-4, 5.0)
    assert settings.weight_decay == RECIPES["finetune"].weight_decay
    assert chosen_settings("photos", "frozen", file, {})[0] == "frozen"


def test_flags_and_file_need_to_go_together_only_in_the_end(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("schedule: steps\nmean: [0.5]\n")
    _, settings = chosen_settings("photos", None, file, {"drops": [0.5], "std": ["0.2"]})
    assert (settings.schedule, settings.drops, settings.mean, settings.std) == ("steps", (0.5,), (0.5,), (0.2,))


@pytest.mark.parametrize(
    ("data", "flags", "expected"),
    [
        ("photos", {}, "default"),
        ("digits", {}, "default"),
        ("svhn", {}, "svhn"),
        ("cifar10", {}, "cifar10"),
        ("cinic10", {}, "cinic10"),
        ("./svhn", {}, "default"),
        ("photos", {"encoder": "timm:resnet18", "pretrained": True}, "finetune"),
        ("photos", {"encoder": "timm:resnet18", "weights": "file"}, "finetune"),
        ("photos", {"freeze": True}, "frozen"),
        ("svhn", {"freeze": True}, "frozen"),
        ("photos", {"encoder": "timm:resnet18", "pretrained": True, "freeze": True}, "frozen"),
        ("photos", {"freeze": False, "pretrained": False}, "default"),
    ],
)
def test_the_recipe_follows_from_data_and_flags(data: str, flags: dict[str, Any], expected: str) -> None:
    name, settings = chosen_settings(data, None, None, flags)
    assert name == expected
    assert settings.weight_decay == RECIPES[expected].weight_decay


def test_a_flag_can_take_back_what_a_recipe_has(data: Path, out: Path) -> None:
    flags = ["--no-freeze", "--encoder", "tiny", "--epochs", "1", "--no-evaluate"]
    succeeds("train", data, "--out", out, "--recipe", "frozen", *flags)
    assert record(out)["settings"]["freeze"] is False


@pytest.mark.parametrize(
    ("given", "expected"),
    [("shift,flip", ["shift", "flip"]), ("shift, erase,", ["shift", "erase"]), ("flip", ["flip"]), ("none", [])],
)
def test_lists_are_written_with_commas(data: Path, out: Path, given: str, expected: list[str]) -> None:
    succeeds("train", data, "--out", out, "--encoder", "tiny", "--epochs", "1", "--augment", given, "--no-evaluate")
    assert record(out)["settings"]["augment"] == expected


def test_an_unknown_key_in_a_file_is_refused_with_the_one_that_was_meant(data: Path, out: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("epoch: 3\n")
    message = fails(2, "train", data, "--out", out, "--config", file)
    assert f"{file}" in message
    assert "there is no setting 'epoch'; did you mean epochs?" in message


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("epochs: three", "epochs is 'three'"),
        ("- 3", "holds a list"),
        ("a: b: c", "is not a YAML file"),
        ("recipe: [a]", "recipe is ['a']; expected one of default, finetune"),
        ("recipe: 7", "recipe is 7; expected one of default, finetune"),
        ("recipe: paper", "there is no recipe 'paper'; expected one of default, finetune"),
        ("skip_bad: perhaps", "skip_bad is 'perhaps'"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(data: Path, out: Path, tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(content)
    assert words in fails(2, "train", data, "--out", out, "--config", file)
    assert not out.exists()


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("# nothing yet\n")
    assert chosen_settings("photos", None, file, {}) == ("default", RECIPES["default"])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.yaml: cannot be read"):
        chosen_settings("photos", None, tmp_path / "nowhere.yaml", {})


# help and completion


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]], ids=" ".join)
def test_help_comes_without_loading_torch(words: list[str]) -> None:
    after = "import atexit, sys; atexit.register(lambda: print('LOADED', *sys.modules))"
    result = run_apart(*words, before=after)
    assert result.code == 0
    shown, loaded = result.out.split("LOADED")
    assert shown.strip()
    assert {"torch", "numpy", "timm", "torchvision"}.isdisjoint(loaded.split())


def test_the_help_teaches_with_commands_that_are_understood() -> None:
    help_text = run("train", "--help").out
    assert "memwrap train photos/ --out runs/photos" in help_text
    assert "memwrap train --resume --out runs/photos" in help_text
    for panel in ("Data", "Model", "Memory", "Training"):
        assert f"─ {panel} ─" in help_text
    assert "memwrap predict runs/photos cat.jpg more/" in run("predict", "--help").out
    assert "memwrap demo" in run("--help").out


def complete(line: str) -> list[str]:
    """What bash is told at the end of this line."""
    asked = {"_MEMWRAP_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    program = Path(sys.executable).with_name("memwrap")
    return subprocess.run(
        [program], stdout=subprocess.PIPE, text=True, env=environment(**asked), check=True
    ).stdout.split()


MADE = {"train", "attach", "add", "drop"}  # commands that make or change a run


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("memwrap ", {*MADE, "evaluate", "predict", "explain", "verify", "check", "demo", "reproduce", "bench"}),
        ("memwrap train --label", {"--label-smoothing"}),
        ("memwrap train photos --variant ", {"memory_wrap", "only_memory", "standard", "vote"}),
        ("memwrap train photos --recipe f", {"finetune", "frozen"}),
    ],
)
def test_the_shell_completes_commands_flags_and_values(line: str, expected: set[str]) -> None:
    assert set(complete(line)) == expected


def test_the_version_is_printed() -> None:
    assert run("--version") == Result(0, f"{memwrap.__version__}\n", "")
