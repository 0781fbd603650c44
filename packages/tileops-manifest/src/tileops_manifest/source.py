"""YAML with positions: the core schema of YAML 1.2, duplicate keys refused, line and column of every node."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import yaml

from tileops_manifest.errors import Problem

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
)
_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip

# libyaml's parser is ten times faster and gives the same marks; the pure Python one is a complete substitute.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Tags that the parser gives to untagged nodes; what they say of scalars is YAML 1.1 and is not used.
_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("map", "seq", "str", "int", "float", "bool", "null", "timestamp", "merge", "value")
}

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed file: plain data (mappings as dicts, sequences as tuples) and where each part of it stands."""

    file: str
    data: Any
    root: yaml.Node | None

    def locate(self, path: Path, offset: int | None = None) -> tuple[int, int]:
        """Line and column (1-based) of the deepest node on ``path``; ``offset`` moves inside a scalar."""
        node = self.root
        if node is None:
            return 1, 1
        mark = node.start_mark
        found = True
        for part in path:
            child = _child(node, part)
            if child is None:
                found = False
                break
            key, node = child
            mark = node.start_mark if isinstance(node, yaml.ScalarNode) else (key or node).start_mark
        column = mark.column + 1
        one_line = isinstance(node, yaml.ScalarNode) and node.start_mark.line == node.end_mark.line
        if found and offset is not None and one_line:
            column += offset + (node.style in ("'", '"'))
        return mark.line + 1, column

    def key_position(self, path: Path) -> tuple[int, int]:
        """Line and column of the key (not the value) at ``path``."""
        node = self.root
        mark = None
        for part in path:
            child = _child(node, part)
            if child is None:
                break
            key, node = child
            mark = (key or node).start_mark
        return (mark.line + 1, mark.column + 1) if mark is not None else self.locate(path)


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == str(part):
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None


def read_yaml(text: str, file: str) -> tuple[Source, list[Problem]]:
    """Parse ``text``. Problems are syntax errors, duplicate keys and constructs outside the core schema."""
    try:
        root = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        message = f"bad YAML: {error.problem or error.context}"
        return Source(file, None, None), [Problem(file, line, column, message)]
    except (yaml.YAMLError, RecursionError) as error:
        return Source(file, None, None), [Problem(file, 1, 1, f"bad YAML: {error}")]
    if root is None:
        return Source(file, None, None), [Problem(file, 1, 1, "the file is empty")]
    problems: list[Problem] = []
    data = _Constructor(file, problems).construct(root)
    return Source(file, data, root), problems


class _Constructor:
    """Plain data from nodes. Each node is built once: an alias shares what its anchor built."""

    def __init__(self, file: str, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems
        self.built: dict[yaml.Node, Any] = {}
        self.open: set[yaml.Node] = set()

    def problem(self, node: yaml.Node, message: str) -> None:
        self.problems.append(
            Problem(self.file, node.start_mark.line + 1, node.start_mark.column + 1, message)
        )

    def construct(self, node: yaml.Node) -> Any:
        if node in self.built:
            return self.built[node]
        if node in self.open:
            self.problem(node, "an alias stands inside its own anchor")
            return None
        if node.tag not in _TAGS:
            self.problem(node, f"tag {node.tag} is not allowed")
        self.open.add(node)
        self.built[node] = self._value(node)
        return self.built[node]

    def _value(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node)
        if isinstance(node, yaml.SequenceNode):
            return tuple(self.construct(item) for item in node.value)
        return self._mapping(node)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            name = key.value
            if not isinstance(key, yaml.ScalarNode):
                self.problem(key, "a key must be a plain name")
            elif name in result:
                self.problem(key, f"duplicate key {name!r} (first in line {first_lines[name]})")
            else:
                first_lines[name] = key.start_mark.line + 1
                result[name] = self.construct(value)
        return result


def _scalar(node: yaml.ScalarNode) -> Any:
    text = node.value
    if node.style:
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text
