# SPDX-License-Identifier: Apache-2.0
"""Configs and layouts on disk."""

from __future__ import annotations

import os
from pathlib import Path

from crossmesh import _core
from crossmesh._error import Error


def _text_of(path: Path, verb: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Error("io_failed", f"{verb}: cannot read", {"file": path, "system": error}) from error


def read_config(path: str | os.PathLike[str]) -> _core.ModelConfig:
    """Reads the config.json of a model.

    Args:
        path: The folder of a checkpoint, a file in it, or the config.json itself.

    Raises:
        crossmesh.Error: invalid_argument: there is none; io_failed: it cannot be read; what
            `parse_config` raises.

    Example:
        >>> crossmesh.read_config(folder) == crossmesh.parse_config(config_text)
        True
    """
    found = Path(path)
    if found.is_dir() or found.suffix != ".json" or found.name.endswith(".index.json"):
        config = _core.find_config(found)
        if config is None:
            raise Error("invalid_argument", "read config: there is no config.json", {"path": found})
        found = config
    text = _text_of(found, "read config")
    return _core.parse_config(text)


def read_layout(path: str | os.PathLike[str]) -> _core.Layout:
    """Reads a layout that `write_layout`, or another program, wrote.

    Raises:
        crossmesh.Error: io_failed: it cannot be read; what `Layout.from_json` raises.

    Example:
        >>> crossmesh.write_layout(source, folder / "trainer.json")
        >>> crossmesh.read_layout(folder / "trainer.json") == source
        True
    """
    return _core.Layout.from_json(_text_of(Path(path), "read layout"))


def write_layout(layout: _core.Layout, path: str | os.PathLike[str]) -> None:
    """Writes a layout as JSON of the schema in docs/layout.schema.json.

    Raises:
        crossmesh.Error: io_failed: it cannot be written.
    """
    try:
        Path(path).write_text(layout.to_json(), encoding="utf-8")
    except OSError as error:
        raise Error(
            "io_failed", "write layout: cannot write", {"file": path, "system": error}
        ) from error
