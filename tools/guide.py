"""Read a guide as a program: the edits that it asks for, and the commands with what they print.

A guide is Markdown for people. Three things in it have a fixed form, so that a test can do what they do:

* a line that says where a block goes, right before the block: "New file `PATH`", "In `PATH`, above (or below)
  the line `X`", "In `PATH`, after the line `X`, replace the next line `Y`". "In the same file" repeats the
  path. Lines are compared without their indentation;
* the block that goes there, in any language;
* a `console` block: lines that begin with `$` are typed, the others are printed, `…` stands for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PLACES = {
    "new": re.compile(r"New file `(?P<path>[^`]+)`"),
    "above": re.compile(r"In (?:`(?P<path>[^`]+)`|the same file), above the line `(?P<line>[^`]+)`"),
    "below": re.compile(r"In (?:`(?P<path>[^`]+)`|the same file), below the line `(?P<line>[^`]+)`"),
    "replace": re.compile(
        r"In (?:`(?P<path>[^`]+)`|the same file), after the line `(?P<after>[^`]+)`, "
        r"replace the next line `(?P<line>[^`]+)`"
    ),
}
_NOT_FOLLOWED = "sh"


class GuideError(ValueError):
    """The guide does not say what is true; the message has its line."""


@dataclass(frozen=True)
class Edit:
    """A block that goes to a place in a file."""

    number: int
    kind: str
    path: str
    text: str
    line: str = ""
    after: str = ""

    def apply(self, root: Path) -> None:
        """Edit the file below `root`.

        Raises:
            GuideError: no such file, or the line is not there exactly once.
        """
        target = root / self.path
        if self.kind == "new":
            target.write_text(self.text, encoding="utf-8")
            return
        if not target.is_file():
            raise GuideError(f"line {self.number}: there is no {self.path}")
        lines = target.read_text(encoding="utf-8").splitlines(keepends=True)
        start, end = self._span(lines)
        target.write_text("".join([*lines[:start], self.text, *lines[end:]]), encoding="utf-8")

    def _span(self, lines: list[str]) -> tuple[int, int]:
        """The lines that the text takes the place of; none of them where it is inserted."""
        if self.kind == "replace":
            begin = self._find(lines, self.after) + 1
            found = next((i for i in range(begin, len(lines)) if lines[i].strip() == self.line), None)
            if found is None:
                raise GuideError(f"line {self.number}: {self.path} has no {self.line!r} after {self.after!r}")
            return found, found + 1
        at = self._find(lines, self.line) + (self.kind == "below")
        return at, at

    def _find(self, lines: list[str], wanted: str) -> int:
        found = [i for i, line in enumerate(lines) if line.strip() == wanted]
        if len(found) != 1:
            raise GuideError(
                f"line {self.number}: {wanted!r} stands {len(found)} times in {self.path}, expected once"
            )
        return found[0]


@dataclass
class Command:
    """A typed line, what it prints, and the status that `echo $?` shows next (0 where nobody asks)."""

    number: int
    text: str
    printed: list[str] = field(default_factory=list)
    status: int = 0

    def check(self, status: int, output: str) -> None:
        """Hold a run against the guide.

        Raises:
            GuideError: another status, or a promised text that is not in the output in this order.
        """
        where = f"line {self.number}: `{self.text}`"
        if status != self.status:
            raise GuideError(f"{where} ended with {status}, expected {self.status}\n{output}")
        seen, position = " ".join(output.split()), 0
        for fragment in (part for line in self.printed for part in line.split("…")):
            words = " ".join(fragment.split())
            found = seen.find(words, position)
            if found < 0:
                raise GuideError(f"{where} does not print {words!r} (there, or in this order)\n{output}")
            position = found + len(words)


def read_guide(text: str) -> list[Edit | Command]:
    """The steps of a guide in order.

    Raises:
        GuideError: a block without a place, a place without a block, output before a command, an open block.
    """
    steps: list[Edit | Command] = []
    place: tuple[int, str, dict[str, str]] | None = None
    path = ""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not line.startswith("```"):
            found = _place(line)
            if place is not None and line.strip():
                raise GuideError(f"line {place[0]}: no block follows this place")
            place = (number, *found) if found else place
            continue
        block = _block(number, lines)
        language = line.removeprefix("```")
        if language == "console":
            steps += _commands(block)
        elif place is not None:
            path = place[2].pop("path", None) or path
            steps.append(Edit(place[0], place[1], path, "".join(f"{t}\n" for _, t in block), **place[2]))
        elif language != _NOT_FOLLOWED:
            raise GuideError(f"line {number}: nothing says where this block goes")
        place = None
    return steps


def _place(line: str) -> tuple[str, dict[str, str]] | None:
    for kind, pattern in _PLACES.items():
        match = pattern.fullmatch(line.strip().removesuffix(":"))
        if match:
            return kind, {name: value for name, value in match.groupdict().items() if value is not None}
    return None


def _block(number: int, lines: Iterator[tuple[int, str]]) -> list[tuple[int, str]]:
    block = []
    for at, line in lines:
        if line == "```":
            return block
        block.append((at, line))
    raise GuideError(f"line {number}: this block does not end")


def _commands(block: list[tuple[int, str]]) -> list[Command]:
    commands: list[Command] = []
    asked = False
    for number, line in block:
        if line == "$ echo $?" and commands:
            asked = True
        elif line.startswith("$ "):
            commands.append(Command(number, line.removeprefix("$ ")))
        elif not commands:
            raise GuideError(f"line {number}: output before any command")
        elif asked:
            commands[-1].status, asked = int(line), False
        else:
            commands[-1].printed.append(line)
    return commands
