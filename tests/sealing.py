"""Edit a saved folder and give it the hashes that fit, as someone would who knows how they are made."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REMOVED = object()


def edit(file: Path, keys: Sequence[str], value: Any) -> None:
    """Set one field of a JSON file, or take it out if the value is REMOVED, and write all hashes accordingly."""
    content = json.loads(file.read_text())
    place = content
    for key in keys[:-1]:
        place = place[key]
    if value is REMOVED:
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    file.write_text(json.dumps(content))
    seal(file.parent)


def seal(folder: Path) -> None:
    """Write the hashes of the files as they are now, and the root hash, into model.json; what cannot be is left."""
    path = folder / "model.json"
    try:
        content = json.loads(path.read_bytes())
        for file in content.get("files", {}).values():
            tensors = (folder / file["name"]).read_bytes()
            file.update(bytes=len(tensors), sha256=hashlib.sha256(tensors).hexdigest())
        for name in content.get("documents", {}):
            content["documents"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        content.pop("root", None)
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps({**content, "root": hashlib.sha256(text.encode()).hexdigest()}))
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return  # damaged beyond sealing
