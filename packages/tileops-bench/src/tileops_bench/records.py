"""Records of the results format `tileops-bench/1`: one header line per run, one line per row.

All times are nanoseconds, all sizes bytes, all rates per second. A record is frozen; an unknown field is an
error.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from tileops_bench.stats import Comparison, Summary, Verdict

SCHEMA = "tileops-bench/1"
UNVERIFIED = "unverified"


class Record(BaseModel):
    """Base of every record: frozen, and strict about unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Code(StrEnum):
    """Why a row is INVALID."""

    NO_KERNELS_SEEN = "no_kernels_seen"
    LOST_RECORDS = "lost_records"
    UNATTRIBUTED_RECORDS = "unattributed_records"
    TIMER_FALLBACK = "timer_fallback"
    CLOCK_DISAGREES = "clock_disagrees"
    BELOW_ROOFLINE = "below_roofline"
    FOREIGN_KERNELS = "foreign_kernels"
    OUTPUT_CHANGED = "output_changed"
    OUTPUT_CONSTANT = "output_constant"
    INPUT_CHANGED = "input_changed"
    THROTTLED = "throttled"
    FEWER_ROWS_THAN_DECLARED = "fewer_rows_than_declared"
    TOO_FEW_SAMPLES = "too_few_samples"
    BASELINE_MISSING = "baseline_missing"
    BASELINE_FAILED = "baseline_failed"
    BASELINE_DISAGREES_ALONE = "baseline_disagrees_alone"
    CANDIDATE_FAILED = "candidate_failed"


class Status(StrEnum):
    """What became of one contender in a row."""

    OK = "ok"
    MISSING = "missing"  # its library is not installed
    UNSUPPORTED = "unsupported"  # its library says that it does not do this case
    EXCLUDED = "excluded"  # the caller asked for it not to run
    FAILED = "failed"  # it ran and broke, or broke a rule of measurement
    REJECTED = "rejected"  # a certificate says that it computes something else


class Problem(Record):
    """One reason code with the numbers behind it."""

    code: Code
    detail: str


class Contender(Record):
    """A candidate or baseline in one row: who it was, what became of it, what was measured."""

    name: str
    status: Status
    detail: str = ""
    library: str = ""
    digest: str = ""
    certified: Literal["yes", "no", "unknown"] = "unknown"
    summary: Summary | None = None
    samples: tuple[int, ...] = ()
    host: Summary | None = None
    span: Summary | None = None
    kernels_per_call: tuple[int, int] | None = None
    first_call_ns: int | None = None
    peak_bytes: int | None = None
    outputs_compared: int = 0
    output_varies: bool | None = None  # with the inputs; None where no two kept calls had different inputs
    problems: tuple[Problem, ...] = ()


class Conditions(Record):
    """The machine and its software, as far as they can change a time."""

    device: str
    target: Literal["cpu", "cuda"]
    timer: str
    threads: int
    affinity: tuple[int, ...]
    cache_scrub_bytes: int
    driver: str = ""
    clocks: dict[str, str] = Field(default_factory=dict)
    platform: str
    python: str
    versions: dict[str, str]
    environment: dict[str, str] = Field(default_factory=dict)


class Header(Record):
    """First line of a run. A resumed run writes another one; rows belong to the header above them."""

    type: Literal["header"] = "header"
    schema_: Literal["tileops-bench/1"] = Field(default=SCHEMA, alias="schema")
    created: str
    command: tuple[str, ...]
    candidate: str
    declared: tuple[str, ...]
    conditions: Conditions
    calibration: dict[str, Any] | None = None
    options: dict[str, Any] = Field(default_factory=dict)
    resumed: bool = False

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Row(Record):
    """One manifest op, workload row and dtype: the measurement and what it means.

    `verification` is the digest of the record that says the candidate computes the op, or "unverified".
    """

    type: Literal["row"] = "row"
    id: str
    op: str
    label: str
    dtypes: dict[str, str]
    params: dict[str, Any]
    inputs: dict[str, str]
    flops: int
    bytes: int
    created: str
    seconds: float
    timer: str
    digests: dict[str, str]
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    candidate: Contender
    baselines: tuple[Contender, ...] = ()
    against: str | None = None
    comparison: Comparison | None = None
    confirmation: Comparison | None = None
    alone: Summary | None = None
    floor_ns: float | None = None
    floor_note: str = ""
    bound: Literal["memory", "compute"] | None = None
    efficiency: float | None = None
    attempts: int = 1
    verification: str = UNVERIFIED

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Identity for resuming: the row and the digests of everything that it depends on."""
        return self.id, tuple(sorted(self.digests.items()))


Line = Annotated[Header | Row, Field(discriminator="type")]
LINE: TypeAdapter[Header | Row] = TypeAdapter(Line)


def json_schema() -> dict[str, Any]:
    """JSON Schema of one line of a results file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": SCHEMA,
        **LINE.json_schema(by_alias=True),
    }


def dump_line(record: Header | Row) -> str:
    """One line of JSON, without the newline; fields that hold their default are left out."""
    return record.model_dump_json(by_alias=True, exclude_defaults=False, exclude_none=True)
