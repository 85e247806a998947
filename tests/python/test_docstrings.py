# SPDX-License-Identifier: Apache-2.0
"""Every public noun and verb says what it does, and its examples run."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import crossmesh

PUBLIC = sorted(crossmesh.__all__)
# Words that need no example of their own: they are parts of others.
VERBS = [name for name in PUBLIC if not inspect.isclass(getattr(crossmesh, name))]
WITHOUT_EXAMPLE = {"find_config", "write_layout"}


def documented(name: str) -> Iterator[tuple[str, str]]:
    """Yields a name's docstring, and those of its members."""
    value = getattr(crossmesh, name)
    yield name, value.__doc__ or ""
    if inspect.isclass(value):
        for member, inner in vars(value).items():
            if not member.startswith("_") or member == "__init__":
                yield f"{name}.{member}", inner.__doc__ or ""


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_a_docstring(name: str) -> None:
    assert getattr(crossmesh, name).__doc__


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_has_an_example(name: str) -> None:
    assert (">>>" in (getattr(crossmesh, name).__doc__ or "")) != (name in WITHOUT_EXAMPLE)


@pytest.mark.parametrize("name", ["crossmesh", *PUBLIC])
def test_examples_run(
    name: str,
    folder: Path,
    config_text: str,
    config: crossmesh.ModelConfig,
    catalog: crossmesh.Catalog,
) -> None:
    source = crossmesh.shard(catalog, "fsdp=2")
    target = crossmesh.family(config, catalog, "tp=2")
    globs: dict[str, Any] = {
        "crossmesh": crossmesh,
        "folder": folder,
        "config_text": config_text,
        "config": config,
        "catalog": catalog,
        "source": source,
        "target": target,
        "plan": crossmesh.compile(source, target),
    }
    texts = [("crossmesh", crossmesh.__doc__ or "")] if name == "crossmesh" else documented(name)
    parser = doctest.DocTestParser()
    said: list[str] = []
    for title, text in texts:
        test = parser.get_doctest(text, dict(globs), title, None, None)
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    text = "".join(said)
    assert not text, text
