"""State of one translation: names, buffers, output lines, guards, and where in the source we are."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import tilelang
import tvm
from tvm import tirx

from ..errors import UnsupportedTileOpError
from .numeric import CType, ctype
from .ranges import Ranges, children, is_arithmetic, key

# Arrays up to this size stay on the stack, where the compiler can keep them in registers; larger ones go to
# the block's arena.
STACK_BYTES: Final = 1024
ALIGNMENT: Final = 64
_TILELANG: Final = os.path.dirname(tilelang.__file__) + os.sep
_RESERVED: Final = frozenset(
    [
        "alignas",
        "alignof",
        "and",
        "asm",
        "auto",
        "bitand",
        "bitor",
        "bool",
        "break",
        "case",
        "catch",
        "char",
        "class",
        "compl",
        "const",
        "continue",
        "default",
        "delete",
        "do",
        "double",
        "else",
        "enum",
        "explicit",
        "export",
        "extern",
        "false",
        "final",
        "float",
        "for",
        "friend",
        "goto",
        "if",
        "inline",
        "int",
        "int8_t",
        "int16_t",
        "int32_t",
        "int64_t",
        "long",
        "mutable",
        "namespace",
        "new",
        "not",
        "operator",
        "or",
        "private",
        "protected",
        "public",
        "register",
        "return",
        "short",
        "signed",
        "sizeof",
        "static",
        "struct",
        "switch",
        "template",
        "this",
        "throw",
        "true",
        "try",
        "typedef",
        "typeid",
        "typename",
        "uint8_t",
        "uint16_t",
        "uint32_t",
        "uint64_t",
        "union",
        "unsigned",
        "using",
        "virtual",
        "void",
        "volatile",
        "while",
        "xor",
        "main",
        "y0",
        "y1",
        "yn",
        "j0",
        "j1",
        "jn",
        "gamma",
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "pow",
        "sqrt",
        "erf",
        "floor",
        "ceil",
        "round",
        "trunc",
        "abs",
        "div",
        "index",
        "signbit",
        "free",
        "malloc",
        "abort",
        "exit",
        "time",
    ]
)


@dataclass(frozen=True)
class Options:
    """What a translation may vary."""

    parallel: bool = True
    reverse_parallel: bool = False
    poison: bool = False
    strict: bool = False


@dataclass(frozen=True)
class Storage:
    """A buffer in the generated code."""

    name: str
    ctype: CType
    shape: tuple
    strides: tuple | None
    offset: object | None
    is_global: bool


@dataclass(frozen=True)
class Guard:
    """A bounds condition, and one free of the nest's variables that implies it (None where there is none)."""

    condition: str
    shared: str | None


@dataclass
class Nest:
    """The `T.Parallel` nest being printed.

    It knows the variables defined and the data written inside, and the conditions under which all guards
    that can be decided outside hold; `assume_shared` leaves those guards out.
    """

    variables: set[int]
    written: set[int]
    assume_shared: bool = False
    unguarded: bool = False  # every access is known to be inside
    guards: int = 0
    shared_guards: int = 0
    shared: list[str] = field(default_factory=list)


class Context:
    """Everything that printers of expressions, statements and tile operations share."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.ranges = Ranges()
        self.lines: list[str] = []
        self.depth = 1
        self.names: dict[int, str] = {}
        self._alive: list[tirx.Var] = []
        self.used_names: set[str] = set()
        self.storage: dict[int, Storage] = {}
        self.data_storage: dict[int, Storage] = {}
        self.thread_variables: set[int] = set()
        self.inlined: dict[
            int, object
        ] = {}  # definitions that come before what they use (T.Persistent), printed at each use
        self.reducers: dict[int, str] = {}
        self.nest: Nest | None = None
        # Of the loop being printed: code of narrow bits -> code of the float they were converted to, and the
        # place of the value that is converted after the loop.
        self.converted: dict[str, str] = {}
        self.run_store: str | None = None
        self.uniform: set[int] = set()  # variables that do not change within a block
        self.block_values: dict[str, str] | None = None  # code -> name, of what is computed once per block
        self.arena_bytes = 0
        self.uses_atomics = False
        self.asserts: list[str] = []
        self.bounds_its_own = False
        self._statements: list[object] = []

    # ---- lines ----

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head + " {" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    @contextmanager
    def captured(self) -> Iterator[list[str]]:
        """Collect lines instead of printing them."""
        outer, self.lines = self.lines, []
        try:
            yield self.lines
        finally:
            self.lines = outer

    # ---- names and storage ----

    def fresh(self, hint: str) -> str:
        base = re.sub(r"\W", "_", hint) or "v"
        base = f"{base}_" if base in _RESERVED or base.startswith("tl_") or base[0].isdigit() else base
        name, n = base, 0
        while name in self.used_names:
            n += 1
            name = f"{base}_{n}"
        self.used_names.add(name)
        return name

    def name(self, variable: tirx.Var) -> str:
        """The C++ name of a variable: one name through all versions of the code around it."""
        identity = key(variable)
        if identity not in self.names:
            self.names[identity] = self.fresh(variable.name)
            self._alive.append(
                variable
            )  # its identity is its address, which must not pass to another variable
        return self.names[identity]

    def all_defined(self, expr: object) -> bool:
        """Whether every variable in the expression has been defined at this point."""
        if isinstance(expr, tirx.Var):
            return key(expr) in self.names or key(expr) in self.thread_variables
        return all(map(self.all_defined, children(expr)))

    def once_per_block(self, expr: object, code: str) -> str:
        """The name of a value that only the block decides, computed at its start; else the code itself.

        Divisions by sizes would otherwise stay inside loops: the compiler may not run early what could trap.
        """
        if self.block_values is None or not self._is_uniform(expr):
            return code
        if code not in self.block_values:
            self.block_values[code] = self.fresh("once")
        return self.block_values[code]

    def _is_uniform(self, expr: object) -> bool:
        if isinstance(expr, tirx.Var):
            return key(expr) in self.uniform
        return is_arithmetic(expr) and all(map(self._is_uniform, children(expr)))

    def add_global(self, buffer: tirx.Buffer) -> Storage:
        strides = tuple(buffer.strides) or None
        offset = buffer.elem_offset
        offset = (
            None
            if (isinstance(offset, tirx.IntImm) and offset.value == 0) or isinstance(offset, tirx.Var)
            else offset
        )
        return self._register(
            buffer,
            Storage(self.fresh(buffer.name), ctype(buffer.dtype), tuple(buffer.shape), strides, offset, True),
        )

    def add_local(self, buffer: tirx.Buffer) -> Storage:
        """Declare block-local storage at the current position."""
        existing = self.storage.get(key(buffer))
        storage = existing or self._register(
            buffer,
            Storage(self.fresh(buffer.name), ctype(buffer.dtype), tuple(buffer.shape), None, None, False),
        )
        self.declare_array(
            storage.name,
            storage.ctype.storage,
            self.constant_size(buffer) * storage.ctype.bytes,
            storage.ctype.bytes,
        )
        return storage

    def declare_array(self, name: str, element: str, nbytes: int, element_bytes: int) -> None:
        if nbytes <= STACK_BYTES and not self.options.poison:
            self.line(f"alignas({ALIGNMENT}) {element} {name}[{max(1, nbytes // element_bytes)}];")
            return
        self.line(f"{element}* __restrict__ {name} = ({element}*)(tl_arena + {self.arena_bytes});")
        if self.options.poison:
            self.line(f"memset({name}, 0xff, {nbytes});")
        self.arena_bytes += -(-nbytes // ALIGNMENT) * ALIGNMENT

    def scratch(self, hint: str, element: str, count: int, element_bytes: int) -> str:
        """Working storage of a tile operation."""
        name = self.fresh(hint)
        self.declare_array(name, element, count * element_bytes, element_bytes)
        return name

    @contextmanager
    def bounded(self):
        """Around a statement that checks its bounds on every target."""
        self.bounds_its_own = True
        yield
        self.bounds_its_own = False

    def failure(self, message: str) -> str:
        """Note a message that a launch may end with; return the code that makes it end so."""
        self.asserts.append(" ".join(message.split()))
        return f"__atomic_store_n(tl_status, {len(self.asserts) + 1}, __ATOMIC_RELAXED)"

    def constant_size(self, buffer: tirx.Buffer) -> int:
        size = 1
        for extent in buffer.shape:
            if not isinstance(extent, tirx.IntImm):
                raise self.unsupported(
                    f"block-local buffer {buffer.name} of the symbolic shape {list(buffer.shape)}"
                )
            size *= extent.value
        return size

    def storage_of(self, buffer: tirx.Buffer) -> Storage:
        found = self.storage.get(key(buffer))
        if found is not None:
            return found
        owner = self.data_storage.get(key(buffer.data))
        if owner is None:
            raise self.unsupported(f"buffer {buffer.name}, which is neither a parameter nor allocated")
        own = ctype(buffer.dtype)
        name = owner.name if own == owner.ctype else f"(({own.storage}*){owner.name})"
        offset = buffer.elem_offset
        offset = None if isinstance(offset, tirx.IntImm) and offset.value == 0 else offset
        alias = Storage(
            name, own, tuple(buffer.shape), tuple(buffer.strides) or None, offset, owner.is_global
        )
        return self._register(buffer, alias)

    def _register(self, buffer: tirx.Buffer, storage: Storage) -> Storage:
        self.storage[key(buffer)] = storage
        self.data_storage.setdefault(key(buffer.data), storage)
        return storage

    # ---- where we are ----

    @contextmanager
    def at(self, statement: object) -> Iterator[None]:
        self._statements.append(statement)
        yield
        self._statements.pop()

    def unsupported(self, operation: str, detail: str | None = None) -> UnsupportedTileOpError:
        return UnsupportedTileOpError(operation, self.location(), detail)

    def location(self) -> str | None:
        """``file:line`` of the innermost statement that has a source position outside TileLang itself."""
        for statement in reversed(self._statements):
            found = _source_line(statement)
            if found is not None:
                return found
        return None


def _source_line(statement: object) -> str | None:
    # Statements do not expose their span to Python; the serialised form has it.
    graph = json.loads(tvm.ir.save_json(statement))
    nodes = graph["nodes"]
    root = nodes[graph["root_index"]].get("data")
    span = nodes[root["span"]] if isinstance(root, dict) and "span" in root else None
    if span is None or span["type"] != "ir.Span":
        return None
    file = nodes[span["data"]["source_name"]]["data"]
    return None if str(file).startswith(_TILELANG) else f"{file}:{span['data']['line']}"
