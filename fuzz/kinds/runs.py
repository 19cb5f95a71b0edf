"""Folders of runs and of saved models."""

import hashlib
import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import load_file, save_file

from fuzz.genuine import MODELS, RUNS, Genuine
from fuzz.kinds.targets import command
from fuzz.mutations import change_json, change_tensors, dump_json, is_deep, nudge_json, odd_value
from fuzz.sandbox import Case, Target, WrongError
from memwrap.storage.checkpoint import root_hash
from tests.data.hostile import mutate

LARGEST = 1 << 28  # bytes of a file that is changed or hashed


def make_runs(draw: Random, genuine: Genuine, folder: Path) -> Case:
    """The changed folder of a run or a saved model, loaded and used."""
    if draw.random() < 0.1:
        return _make_other_memory(draw, genuine, folder)
    name = draw.choice((*RUNS, *RUNS, *MODELS))
    path = folder / "run"
    shutil.copytree(genuine.run(name), path)
    words = [_change_run(draw, genuine, path) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    target, what = _run_target(draw, genuine, path, name, folder)
    if draw.random() < 0.7:
        rehash(path)
        words.append("hashes made again")
    elif _is_edited(path, genuine.run(name)):
        words.append("hashes as they were")
        return Case(lambda: _refuse(target), f"{name}: {', '.join(words)}; {what}")
    return Case(target, f"{name}: {', '.join(words)}; {what}")


def _make_other_memory(draw: Random, genuine: Genuine, folder: Path) -> Case:
    """A run in which two memory images, encodings, labels or predictions changed places; all hashes made again."""
    path = folder / "run"
    shutil.copytree(genuine.run(draw.choice(("digits", "only_memory", "vote"))), path)
    (file,) = path.glob("memory.*.safetensors")
    memory = load_file(file)
    name = draw.choice(("images", "encodings", "labels"))
    first = draw.randrange(len(memory[name]))
    others = [row for row, each in enumerate(memory[name]) if not each.equal(memory[name][first])]
    if not others:  # all of one class
        return Case(lambda: command("check", path), f"a genuine run, as all {name} are equal; for check")
    rows = [first, draw.choice(others)]
    memory[name][rows] = memory[name][rows[::-1]]
    save_file(memory, file)
    rehash(path)
    return Case(lambda: _refuse(lambda: command("check", path)), f"{name} {rows} of the memory swapped; for check")


def _refuse(target: Target) -> bool:
    if target():
        raise WrongError("the run was edited, and nothing was noticed")
    return False


def _is_edited(path: Path, original: Path) -> bool:
    """Whether anything that the root hash is about differs. A folder without root hash is one of memwrap 0.1."""
    manifest = _json_in(path / "model.json")
    if not isinstance(manifest, dict) or manifest.get("root") is None:
        return False
    return _content(path) != _content(original)


def _content(path: Path) -> dict[str, Any]:
    """What a run's files say, by name; of JSON the value, so that blanks do not matter."""
    documents = {name: _json_in(path / name) for name in ("run.json", "splits.json", "model.json")}
    tensors = [file for file in path.glob("*.safetensors") if _is_plain(file)]
    return documents | {file.name: file.read_bytes() for file in tensors}


def _run_target(draw: Random, genuine: Genuine, path: Path, name: str, folder: Path) -> tuple[Target, str]:
    photo = genuine.picture if name in RUNS else genuine.folder / "images" / "large.png"
    if name == "stopped" and draw.random() < 0.7:
        return lambda: _resume(path), "resumed"
    targets: list[tuple[Target, str]] = [
        (lambda: _load(path), "loaded"),
        (lambda: _open(path), "opened"),
        (lambda: command("predict", path, photo, "--json"), "for predict"),
        (lambda: command("explain", path, photo, "--html", folder / "why.html"), "for explain --html"),
        (lambda: command("explain", path, photo), "for explain"),
    ]
    if name in RUNS:
        targets += [
            (lambda: command("evaluate", path), "for evaluate"),
            (lambda: command("add", path, genuine.folder / "photos.zip"), "for add"),
            (lambda: command("drop", path, "#0"), "for drop"),
        ]
    if "check" in _commands():
        targets.append((lambda: command("check", path), "for check"))
    return draw.choice(targets)


def _commands() -> set[str]:
    from memwrap.cli.app import app

    return {each.name or each.callback.__name__ for each in app.registered_commands if each.callback}


def _load(path: Path) -> bool:
    import memwrap

    memwrap.load(path)
    return True


def _open(path: Path) -> bool:
    from memwrap.runs.run import open_model

    run = open_model(path)
    run.model()
    return run.memory_names is None or len(run.memory_names) > 0


def _resume(path: Path) -> bool:
    from memwrap.data import digits
    from memwrap.runs.run import open_run
    from memwrap.runs.training import resume

    resume(open_run(path), digits()).train(lambda: True)  # one step: settings may ask for a million
    return True


def _change_run(draw: Random, genuine: Genuine, path: Path) -> str:
    """Change one thing in a run's folder; what, in words."""
    files = sorted(each for each in path.iterdir() if _is_plain(each) and each.name[0] != ".")
    if not files:
        return "nothing left to change"
    texts = [each for each in files if each.suffix in (".json", ".jsonl")]
    tensors = [each for each in files if each.suffix == ".safetensors"]
    kind = draw.choice(
        ("json", "json", "json", "model", "model", "tensors", "tensors", "bytes", "place", "architecture")
    )
    if kind == "tensors" and tensors:
        file = draw.choice(tensors)
        file.write_bytes(change_tensors(draw, file.read_bytes()))
    elif kind == "bytes":
        file = draw.choice(files)
        file.write_bytes(mutate(file.read_bytes(), draw))
    elif kind == "place":
        file = draw.choice(files)
        return f"{file.name} is {_replace_file(draw, file, genuine)}"
    elif kind == "architecture" and (path / "model.json") in files:
        file = path / "model.json"
        return _change_architecture(draw, file, genuine)
    else:
        file = (
            path / "model.json" if kind == "model" and (path / "model.json") in files else draw.choice(texts or files)
        )
        if (value := _json_in(file)) is None:
            file.write_bytes(mutate(file.read_bytes(), draw))
        else:
            changed = nudge_json(draw, value) if draw.random() < 0.4 else change_json(draw, value, str(genuine.bait))
            file.write_bytes(dump_json(draw, _without_bait(changed, genuine)))
    return f"{file.name} changed"


def _without_bait(value: Any, genuine: Genuine) -> Any:
    """A run may name the bait as its data, and will get it: SECURITY.md says so."""
    data = value.get("data") if isinstance(value, dict) else None
    if isinstance(data, dict) and data.get("source") == str(genuine.bait):
        data["source"] = "/not/there"
    return value


def _is_plain(path: Path) -> bool:
    """Whether this harness can read it: other things are put in the place of files too."""
    try:
        status = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size < LARGEST


def _json_in(path: Path, deepest: bool = False) -> Any:
    if not _is_plain(path):
        return None
    try:
        content = path.read_bytes()
        value = json.loads(content.splitlines()[0] if path.suffix == ".jsonl" else content)
    except (ValueError, RecursionError, IndexError):
        return None
    return None if is_deep(value) and not deepest else value


def _replace_file(draw: Random, file: Path, genuine: Genuine) -> str:
    content = file.read_bytes()
    file.unlink()
    match draw.randrange(8):
        case 0:
            return "gone"
        case 1:
            os.mkfifo(file)
            return "a pipe"
        case 2:
            target = draw.choice((genuine.bait, Path("/dev/zero"), Path("/etc/passwd"), file, Path("/")))
            file.symlink_to(target)
            return f"a link to {target}"
        case 3:
            kept = file.with_name("kept")
            kept.write_bytes(content)
            file.symlink_to(kept)
            return "a link to itself under another name"
        case 4:
            with file.open("wb") as sparse:
                sparse.write(content)
                sparse.truncate(draw.choice((1 << 30, 1 << 36)))
            return "sparse and huge"
        case 5:
            file.mkdir()
            return "a folder"
        case 6:
            file.write_bytes(b"")
            return "empty"
        case _:
            depth = draw.choice((1_200, 100_000, 5_000_000))
            file.write_bytes(b'{"a":' * depth + b"1" + b"}" * depth)
            return f"{depth} levels deep"


def _change_architecture(draw: Random, file: Path, genuine: Genuine) -> str:
    """Another architecture in a model.json, of those that would read files, ask the network or take much memory."""
    if not isinstance(value := _json_in(file), dict) or not isinstance(value.get("classifier"), dict):
        return "model.json as it was"
    bait = str(genuine.bait)
    wrapper = {"model_type": "timm_wrapper", "architecture": "resnet18", "model_args": {"checkpoint_path": bait}}
    huge = draw.choice((10**4, 10**6, 10**9, 10**12))
    odd = odd_value(draw, bait)
    source, name, arguments = draw.choice(
        [
            ("transformers", "CLIPForImageClassification", {"vision_config": wrapper}),
            ("transformers", "TimmWrapperForImageClassification", wrapper),
            ("transformers", "ViTForImageClassification", {"hidden_size": huge, "num_hidden_layers": huge}),
            ("transformers", "ViTForImageClassification", {"_name_or_path": bait, "auto_map": {"AutoModel": "x--y.Z"}}),
            ("transformers", "ViTForImageClassification", {"image_size": huge}),
            ("transformers", "LevitForImageClassification", {"image_size": draw.choice((600, 2400, 4096, huge))}),
            ("transformers", "PoolFormerForImageClassification", {"pool_size": draw.choice((3, 801, 4095))}),
            ("transformers", "DetrForImageClassification", {"backbone": "resnet50", "use_pretrained_backbone": True}),
            ("transformers", "UperNetForImageClassification", {"backbone_config": {"model_type": "bit"}}),
            ("transformers", "BeitForImageClassification", {"quantization_config": {"load_in_8bit": True}}),
            (
                "transformers",
                draw.choice(("SwinForImageClassification", "ResNetForImageClassification")),
                {"depths": [huge]},
            ),
            ("encoders", "timm:resnet18", {"num_classes": 3, "checkpoint_path": bait}),
            ("encoders", "timm:resnet18", {"num_classes": 3, "pretrained": True}),
            ("encoders", "timm:resnet18", {"num_classes": 3, "pretrained_cfg_overlay": {"file": bait}}),
            ("encoders", "timm:hf-hub:timm/resnet18.a1_in1k", {"num_classes": 3}),
            ("encoders", f"timm:local-dir:{genuine.folder}", {"num_classes": 3}),
            ("encoders", "timm:vit_giant_patch14_dinov2", {"num_classes": 3}),
            ("encoders", "timm:test_vit", {"num_classes": huge}),
            ("encoders", "tiny", {"num_classes": huge, "channels": draw.choice((1, huge))}),
            ("encoders", draw.choice(("resnet18", "densenet", "nothing", "tiny")), {"num_classes": 10, "size": odd}),
            ("torchvision", "resnet18", {"num_classes": huge}),
            ("torchvision", "vit_h_14", {"num_classes": 3}),
            ("torchvision", "raft_large", {"num_classes": 3}),
            ("torchvision", "resnet18", {"weights": "DEFAULT"}),
            ("torchvision", "googlenet", {"num_classes": 3, "aux_logits": odd, "init_weights": True}),
            ("os", "system", {"command": "touch /tmp/x"}),
        ]
    )
    before = value["classifier"].get("architecture")
    before = before.get("arguments") if isinstance(before, dict) else None
    if isinstance(before, dict) and draw.random() < 0.3:
        arguments = {**before, **arguments}
    if draw.random() < 0.2:
        arguments = change_json(draw, arguments, bait)
    value["classifier"]["architecture"] = {"source": source, "name": name, "arguments": arguments}
    file.write_text(json.dumps(value))
    return f"model.json with {source} {name} {str(arguments)[:200]}"


def rehash(path: Path) -> None:
    """Make all hashes in a run's folder fit its files again, as someone who knows the format would.

    As far as that is possible: unlike `tests.sealing.seal`, for folders in which anything may be wrong.
    """
    if not isinstance(value := _json_in(path / "model.json", deepest=True), dict):
        return
    files, documents = value.get("files"), value.get("documents")
    for entry in files.values() if isinstance(files, dict) else ():
        if isinstance(entry, dict) and (content := _content_of(path, entry.get("name"))) is not None:
            entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    for name in documents if isinstance(documents, dict) else ():
        if (content := _content_of(path, name)) is not None:
            documents[name] = hashlib.sha256(content).hexdigest()
    with suppress(RecursionError):
        (path / "model.json").write_text(json.dumps({**value, "root": root_hash(value)}))


def _content_of(folder: Path, name: object) -> bytes | None:
    file = folder / name if isinstance(name, str) and "/" not in name and "\0" not in name else folder
    return file.read_bytes() if _is_plain(file) else None
