"""L1: what every kernel class shares. One subclass per tile program.

A kernel is a tile program, the dtypes it takes, and a table of default configs. It never validates user input
(the op did), never looks at a row, batch or token count (those are symbolic in the program) and holds no
state beyond the memo of programs it has compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

import torch

from tileops_kernels.errors import ConfigError, DeviceError
from tileops_kernels.kernels.together import now_or_together
from tileops_kernels.memo import Memo
from tileops_kernels.tracing import TRACING

__all__ = ["ConfigTable", "Kernel", "arch_of", "freeze", "target_of"]

_TARGET_OF_DEVICE = {"cpu": "cpu", "cuda": "cuda"}


def target_of(device: torch.device, op: str = "tileops_kernels") -> str:
    """Return the target that serves `device`.

    Raises:
        DeviceError: no target serves this type of device.

    >>> target_of(torch.device("cpu"))
    'cpu'
    """
    try:
        return _TARGET_OF_DEVICE[device.type]
    except KeyError:
        raise DeviceError(
            op, argument="device", got=repr(device.type), expected=" or ".join(map(repr, _TARGET_OF_DEVICE))
        ) from None


@lru_cache(maxsize=64)
def _cuda_arch(index: int) -> str:
    major, minor = torch.cuda.get_device_capability(index)
    # From Hopper on, the matrix units need the architecture-specific ("a") instruction set.
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


def arch_of(device: torch.device) -> str | None:
    """Return the compute architecture of a CUDA device (`sm_90a`), and None for a CPU."""
    if device.type != "cuda":
        return None
    return _cuda_arch(torch.cuda.current_device() if device.index is None else device.index)


def freeze(value: Any) -> Hashable:
    """Return a hashable form of `value` that tells apart everything a tile program could tell apart.

    Plain equality is not enough for a cache key: `1 == True == 1.0` and `0.0 == -0.0`.

    >>> freeze(1) == freeze(True), freeze(0.0) == freeze(-0.0), freeze([1, 2]) == freeze((1, 2))
    (False, False, True)
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = tuple((f.name, freeze(getattr(value, f.name))) for f in dataclasses.fields(value))
        return (type(value).__qualname__, fields)
    if isinstance(value, Mapping):
        return ("mapping", tuple((name, freeze(value[name])) for name in sorted(value)))
    if isinstance(value, list | tuple):
        return ("sequence", tuple(freeze(item) for item in value))
    if isinstance(value, float):
        return ("float", value.hex())
    if not isinstance(value, Hashable):
        raise ConfigError(
            f"a kernel's static arguments must be hashable, got {type(value).__name__}: {value!r}"
        )
    return (type(value).__qualname__, value)


def _arch_number(arch: str) -> int:
    return int("".join(ch for ch in arch if ch.isdigit()))


@dataclass(frozen=True)
class ConfigTable:
    """Default configs of one kernel: per device a tuple of `(limit, config)` buckets, by size.

    Attributes:
        size: maps the sizes handed to `pick` (static arguments and hints such as a row count) to the number
            that the limits are compared with.
        devices: `"cpu"` or an architecture (`"sm_90a"`) -> buckets in rising order of limit. The first bucket
            whose limit is at least the size wins; the last limit is None, "any size".
        everywhere: False for a kernel that is written for some architectures alone, which has no `"cpu"` row.

    An architecture that is not in the table takes the nearest older one's buckets, else the oldest one's.

    >>> devices = {"cpu": ((None, "c"),), "sm_80": ((1024, "small"), (None, "big"))}
    >>> table = ConfigTable(lambda sizes: sizes["hidden"], devices)
    >>> table.pick("cuda", "sm_90a", {"hidden": 1024}), table.pick("cuda", "sm_90a", {"hidden": 1025})
    ('small', 'big')
    >>> table.pick("cpu", None, {"hidden": 7})
    'c'
    """

    size: Callable[[Mapping[str, Any]], int]
    devices: Mapping[str, tuple[tuple[int | None, Any], ...]]
    everywhere: bool = True
    _archs: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.everywhere and "cpu" not in self.devices:
            raise ConfigError(f"a config table needs a 'cpu' row, got {sorted(self.devices)}")
        archs = sorted((name for name in self.devices if name != "cpu"), key=_arch_number)
        if not archs:
            raise ConfigError("a config table needs at least one CUDA architecture, such as 'sm_80'")
        for name, buckets in self.devices.items():
            limits = [limit for limit, _ in buckets]
            if (
                not limits
                or limits[-1] is not None
                or None in limits[:-1]
                or limits[:-1] != sorted(limits[:-1])
            ):
                raise ConfigError(f"limits of {name!r} must rise and end with None, got {limits}")
        object.__setattr__(self, "_archs", tuple(archs))

    def pick(self, target: str, arch: str | None, sizes: Mapping[str, Any]) -> Any:
        """Return the default config for one target, architecture and set of sizes."""
        size = self.size(sizes)
        buckets = self.devices[self._row(target, arch)]
        return next(config for limit, config in buckets if limit is None or size <= limit)

    def _row(self, target: str, arch: str | None) -> str:
        if target == "cpu":
            if "cpu" not in self.devices:
                raise ConfigError(f"no config for the CPU, expected one of {sorted(self.devices)}")
            return "cpu"
        if arch is None:
            raise ConfigError("a CUDA config needs an architecture, such as 'sm_90a'")
        if arch in self.devices:
            return arch
        older = [name for name in self._archs if _arch_number(name) <= _arch_number(arch)]
        return older[-1] if older else self._archs[0]


class Kernel:
    """Base of every kernel class. The class name is the `kernel_map` value in the manifest.

    A subclass provides `Config` (a frozen dataclass), `CONFIGS` (a `ConfigTable`), `program` and `samples`:

        class RMSNormKernel(Kernel):
            SUPPORTED_DTYPES = frozenset({"float16", "bfloat16", "float32"})

            @dataclass(frozen=True)
            class Config:
                block_rows: int
                threads: int

            CONFIGS = ConfigTable(
                size=lambda s: s["hidden"],
                devices={"cpu": ((None, Config(1, 128)),), "sm_80": ((None, Config(4, 128)),)},
            )

            @staticmethod
            def program(*, hidden, dtype, config): ...

            @classmethod
            def samples(cls):
                return ({"hidden": 4096, "dtype": "bfloat16"},)

    Class variables:
        SUPPORTED_DTYPES: names of the dtypes the program takes; may be narrower than the entry's.
        ALIGNMENT: bytes of address alignment that a variant of the program may rely on. Above 1, the inputs'
            addresses modulo this are part of an op's plan key, so that a flow may choose by them.
        PARALLEL_GRID: False where blocks of the grid depend on each other (atomics), so the CPU runs them in
            order.
        PASS_CONFIGS: TileLang pass options the program needs.
        ARCHS: the only architectures the program is written for, where it names what only they have; such a
            kernel is a further schedule of what a general one computes. None: every target.
    """

    SUPPORTED_DTYPES: ClassVar[frozenset[str]]
    ALIGNMENT: ClassVar[int] = 1
    PARALLEL_GRID: ClassVar[bool] = True
    PASS_CONFIGS: ClassVar[Mapping[str, Any]] = {}
    ARCHS: ClassVar[frozenset[str] | None] = None
    Config: ClassVar[type]
    CONFIGS: ClassVar[ConfigTable]

    _memo: ClassVar[Memo]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._memo = Memo()
        config_type = cls.__dict__.get("Config")
        if config_type is not None:
            params = getattr(config_type, "__dataclass_params__", None)
            if params is None or not params.frozen:
                raise ConfigError(f"{cls.__name__}.Config must be a frozen dataclass")

    @staticmethod
    def program(*, config: Any, **static: Any) -> Any:
        """Return the tile program (a `PrimFunc`). `static` is hashable; row and token counts are symbolic."""
        raise NotImplementedError

    @classmethod
    def default_config(cls, *, target: str, arch: str | None, **sizes: Any) -> Any:
        """Return the default config. `sizes`: the static arguments and any hints the table's `size` reads."""
        return cls.CONFIGS.pick(target, arch, sizes)

    @classmethod
    def serves(cls, target: str, arch: str | None) -> bool:
        """True if the program is written for the target and architecture."""
        return cls.ARCHS is None or (target == "cuda" and arch in cls.ARCHS)

    @classmethod
    def serves_device(cls, device: torch.device) -> bool:
        """True if the program is written for a device's target and architecture."""
        return cls.serves(target_of(device, cls.__name__), arch_of(device))

    @classmethod
    def samples(cls) -> tuple[Mapping[str, Any], ...]:
        """Return representative sets of static arguments, for lowering tests and prewarming."""
        raise NotImplementedError

    @classmethod
    def config_for(cls, device: torch.device, **sizes: Any) -> Any:
        """Return the default config for a device; for flows that choose by a symbolic size (a row count)
        too."""
        return cls.default_config(target=target_of(device, cls.__name__), arch=arch_of(device), **sizes)

    @classmethod
    def cache_key(cls, target: str, arch: str | None, config: Any, static: Mapping[str, Any]) -> Hashable:
        """Return the key a compiled program is memoised under: every field of the config, found by
        introspection."""
        return (target, arch, freeze(config), freeze(static))

    @classmethod
    def compiled(cls, device: torch.device, config: Any = None, **static: Any) -> Any:
        """Return the compiled program for a device, compiling it on first use. Thread-safe.

        Within `compiled_together` a missing program is put off, and what is returned launches nothing.

        Args:
            device: where the program will run; only its type and architecture matter.
            config: an instance of `cls.Config`; None takes the default of the table.
            **static: the keyword arguments of `cls.program`.

        Raises:
            DeviceError: no target serves the device.
            ConfigError: the config is of another kernel, the kernel is not written for the device, or a
                static argument is not hashable.
            tileops_kernels.targets.TargetError: the program does not compile.
        """
        target, arch = target_of(device, cls.__name__), arch_of(device)
        cls._check_served(target, arch)
        if config is None:
            config = cls.default_config(target=target, arch=arch, **static)
        cls._check_config(config)
        key = cls.cache_key(target, arch, config, static)

        def make() -> Any:
            return cls._memo.get(key, lambda: cls._compile(target, arch, config, static))

        return make() if key in cls._memo else now_or_together(make)

    @classmethod
    def lower(cls, arch: str, config: Any = None, **static: Any) -> Any:
        """Lower to a CUDA binary for `arch` without a GPU: what the resource tests look at. Thread-safe. See
        `lower_cuda`."""
        from tileops_kernels.targets import lower_cuda

        cls._check_served("cuda", arch)
        if config is None:
            config = cls.default_config(target="cuda", arch=arch, **static)
        cls._check_config(config)
        return lower_cuda(cls._trace(config, static), arch=arch, pass_configs=cls.PASS_CONFIGS)

    @classmethod
    def programs(cls) -> int:
        """Return how many programs of this kernel are compiled in this process."""
        return len(cls._memo)

    @classmethod
    def clear(cls) -> None:
        """Forget the programs compiled in this process (those on disk stay)."""
        cls._memo.clear()

    @classmethod
    def _check_served(cls, target: str, arch: str | None) -> None:
        if not cls.serves(target, arch):
            raise ConfigError(
                f"{cls.__name__}: target is {arch or target}, expected {' or '.join(sorted(cls.ARCHS))}"
            )

    @classmethod
    def _check_config(cls, config: Any) -> None:
        if not isinstance(config, cls.Config):
            raise ConfigError(
                f"{cls.__name__}: config is {type(config).__name__}, expected {cls.Config.__qualname__}"
            )

    @classmethod
    def _trace(cls, config: Any, static: Mapping[str, Any]) -> Any:
        with TRACING:
            return cls.program(**static, config=config)

    @classmethod
    def _compile(cls, target: str, arch: str | None, config: Any, static: Mapping[str, Any]) -> Any:
        from tileops_kernels.targets import compile_program

        return compile_program(
            cls._trace(config, static),
            target,
            arch=arch,
            parallel=cls.PARALLEL_GRID,
            pass_configs=cls.PASS_CONFIGS,
        )
