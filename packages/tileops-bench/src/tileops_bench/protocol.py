"""Messages between the parent (which decides) and the child (which measures): JSON lines, validated on both
sides."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from tileops_bench.records import Problem, Record, Status


class Spec(Record):
    """A contender by reference; `ref` is `tileops`, `baseline:NAME` or `FILE.py:OBJECT` /
    `package.module:OBJECT`."""

    name: str
    ref: str
    role: Literal["candidate", "baseline"]


class RowJob(Record):
    """Measure contenders beside each other on one row."""

    type: Literal["row"] = "row"
    op: str
    label: str
    dtypes: dict[str, str]
    scale: Literal["cpu"] | None = None
    manifest: str | None = None
    target: Literal["cpu", "cuda"]
    timer: str
    contenders: tuple[Spec, ...]
    seed: int = 0
    budget_s: float = 1.0
    min_samples: int = 7
    max_samples: int = 100
    scrub_bytes: int = 0
    bulk: bool = True


class PrepareJob(Record):
    """Call every contender of a row once, untimed, so that what it compiles is on disk."""

    type: Literal["prepare"] = "prepare"
    row: RowJob


class RatesJob(Record):
    """Measure the device's ceilings: copy, read and matmul rates."""

    type: Literal["rates"] = "rates"
    target: Literal["cpu", "cuda"]
    timer: str
    dtypes: tuple[str, ...]
    copy_bytes: int
    matmul_size: int
    scrub_bytes: int = 0


class ConfigJob(Record):
    """Measure one kernel class under several configs on one row."""

    type: Literal["configs"] = "configs"
    kernel: str
    op: str
    label: str
    dtypes: dict[str, str]
    limit: int
    target: Literal["cpu", "cuda"]
    timer: str
    budget_s: float = 1.0
    scale: Literal["cpu"] | None = None
    scrub_bytes: int = 0


Job = Annotated[RowJob | PrepareJob | RatesJob | ConfigJob, Field(discriminator="type")]


class Ready(Record):
    """The child is up, with its affinity applied."""

    type: Literal["ready"] = "ready"
    device: str
    threads: int
    affinity: tuple[int, ...]
    l2_bytes: int = 0


class Phase(Record):
    """What the child is about to do; the parent uses it to name the guilty one when the child dies."""

    type: Literal["phase"] = "phase"
    name: str
    contender: str = ""


class BulkBegin(Record):
    """From here the parent's own clock runs, for `calls` calls of the candidate."""

    type: Literal["bulk-begin"] = "bulk-begin"
    calls: int


class BulkEnd(Record):
    """The calls announced by BulkBegin are done and the device is idle."""

    type: Literal["bulk-end"] = "bulk-end"


class Kept(Record):
    """Fingerprints around one kept call: its inputs, its output, and the output of an untimed call on
    copies."""

    inputs: str
    timed: str
    untimed: str


class RawContender(Record):
    """Raw samples of one contender, in the order they were taken, and what was observed around them.

    `far_output`: where no kept outputs differ, the fingerprint for half of the first slot's values.
    """

    name: str
    status: Status
    detail: str = ""
    samples: tuple[int, ...] = ()
    spans: tuple[int, ...] = ()
    kernel_names: tuple[str, ...] = ()
    host: tuple[int, ...] = ()
    kernels_per_call: tuple[int, int] | None = None
    first_call_ns: int | None = None
    peak_bytes: int | None = None
    outputs: tuple[Kept, ...] = ()
    far_output: str | None = None
    problems: tuple[Problem, ...] = ()


class Measured(Record):
    """The answer to a RowJob."""

    type: Literal["measured"] = "measured"
    timer: str
    flops: int
    bytes: int
    bytes_written: int
    inputs: dict[str, str]
    params: dict[str, Any]
    deterministic: bool
    contenders: tuple[RawContender, ...]
    problems: tuple[Problem, ...] = ()


class Prepared(Record):
    """The answer to a PrepareJob: what each contender that failed said."""

    type: Literal["prepared"] = "prepared"
    failures: tuple[str, ...] = ()


class Rates(Record):
    """The answer to a RatesJob: bytes or operations per second."""

    type: Literal["rates-measured"] = "rates-measured"
    copy_rate: float
    read_rate: float
    matmul: dict[str, float]


class ConfigTimes(Record):
    """The answer to a ConfigJob, the default config first: samples and, where it failed, the reason."""

    type: Literal["configs-measured"] = "configs-measured"
    configs: tuple[dict[str, Any], ...]
    samples: tuple[tuple[int, ...], ...]
    errors: tuple[str, ...]


class Failure(Record):
    """The job could not be done at all."""

    type: Literal["failure"] = "failure"
    kind: Literal["usage", "timer", "error"]
    detail: str


Reply = Annotated[
    Ready | Phase | BulkBegin | BulkEnd | Measured | Prepared | Rates | ConfigTimes | Failure,
    Field(discriminator="type"),
]
JOB: TypeAdapter[Job] = TypeAdapter(Job)
REPLY: TypeAdapter[Reply] = TypeAdapter(Reply)
