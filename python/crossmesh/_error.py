# SPDX-License-Identifier: Apache-2.0
"""The one error of crossmesh."""

from __future__ import annotations

from collections.abc import Mapping


class Error(Exception):
    """What is wrong, in words and in parts to branch on.

    Its text is `verb: what is wrong`, then a line for each fact, then a hint where the reader can
    act. It is the text of the C++ error, to the letter.

    Attributes:
        code: What kind of error it is: `invalid_argument`, `corrupt_file`, `io_failed`,
            `unsupported`, `mismatch`, `limit_exceeded`, `out_of_memory`, `timed_out`, `peer_lost`,
            `aborted` or `internal`.
        summary: The first line.
        facts: Names and numbers by key, in the order of the text. A key that occurs more than once
            has a line for each.
        hint: How to mend it, or None.

    Example:
        >>> try:
        ...     crossmesh.read("no-such-folder")
        ... except crossmesh.Error as error:
        ...     print(error.code, error.facts)
        invalid_argument {'file': 'no-such-folder'}
    """

    code: str
    summary: str
    facts: dict[str, str]
    hint: str | None

    def __init__(
        self,
        code: str,
        summary: str,
        facts: Mapping[str, object] | None = None,
        hint: str | None = None,
        *,
        text: str | None = None,
    ) -> None:
        self.code = code
        self.summary = summary
        self.facts = {key: str(value) for key, value in (facts or {}).items()}
        self.hint = hint
        if text is None:
            lines = [summary, *(f"  {key}  {value}" for key, value in self.facts.items())]
            text = "\n".join(lines if hint is None else [*lines, f"  hint  {hint}"])
        super().__init__(text)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return _restored, (self.code, self.summary, self.facts, self.hint, str(self))


def _restored(code: str, summary: str, facts: dict[str, str], hint: str | None, text: str) -> Error:
    return Error(code, summary, facts, hint, text=text)
