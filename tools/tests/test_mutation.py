"""Mutants are made where they matter, judged once, and no survivor is called anything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mutation
from boundary.model import StageTable
from mutants.make import Mutant, make_mutants, program_lines
from mutants.ops import ops_for, users

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = '''"""A kernel."""

import tilelang.language as T

MOST = 1 + 2


def program(rows):
    most = rows + 1

    @T.prim_func
    def scaled(x: T.Tensor((4,), "float32")):
        with T.Kernel(T.ceildiv(rows, 2)) as block:
            total = T.alloc_fragment((1,), "float32")
            T.clear(total)
            if block < most:
                total[0] += T.exp(x[block]) * 3

    return scaled
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for place, text in {
        "packages/tileops-kernels/src/tileops_kernels/kernels/scaled.py": PROGRAM,
        "packages/tileops-tests/src/tileops_tests/oracles/scaled.py": "def program(x):\n    return x + 1\n",
        "packages/tileops-manifest/src/tileops_manifest/ops/x.yaml": (
            'ops:\n  AFwdOp:\n    summary: "née"\n    roofline: {flops: "2 * M"}\n'
        ),
        **{
            f"packages/tileops-tests/src/tileops_tests/{name}.py": "good = a <= b\n"
            for name in ("comparator", "tolerance", "sensitivity", "second")
        },
    }.items():
        path = tmp_path / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def by_area(tree: Path, area: str) -> list[Mutant]:
    return make_mutants(tree, [area])


def test_a_kernel_is_mutated_inside_its_tile_program_only(tree: Path) -> None:
    found = by_area(tree, "kernels")
    assert {mutant.line for mutant in found} == set(program_lines(PROGRAM)) - {12}
    kinds = {mutant.note for mutant in found}
    assert kinds >= {"operator", "bound", "accumulation", "statement", "function"}


@pytest.mark.parametrize("area", ["kernels", "comparator", "oracles", "rooflines"])
def test_a_mutant_is_one_change_that_can_be_applied(tree: Path, area: str) -> None:
    found = by_area(tree, area)
    assert found
    assert len({mutant.id for mutant in found}) == len(found)
    for mutant in found:
        source = (tree / mutant.file).read_bytes()
        changed = mutant.apply(source)
        assert changed != source
        assert source[mutant.start : mutant.end].decode() == mutant.before
        if area != "rooflines":
            compile(changed, mutant.file, "exec")


def test_a_formula_is_mutated_where_it_stands(tree: Path) -> None:
    (mutant,) = [m for m in by_area(tree, "rooflines") if m.operator == "times-to-plus"]
    assert b'flops: "2 + M"' in mutant.apply((tree / mutant.file).read_bytes())


def test_every_kernel_file_has_ops_that_judge_it(table: StageTable) -> None:
    found = users(ROOT, table)
    files = {mutant.file for mutant in make_mutants(ROOT, ["kernels"])}
    assert [file for file in files if not found[file]] == []


def test_a_mutant_of_one_expression_is_judged_by_its_own_op(table: StageTable) -> None:
    file = next(file for file in users(ROOT, table) if file.endswith("elementwise_expressions.py"))
    source = (ROOT / file).read_text(encoding="utf-8")
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.startswith("def gelu_tanh("))
    able = {file: ("ReluFwdOp", "GeluTanhFwdOp", "GeluTanhAndMulFwdOp", "ExpFwdOp")}
    assert ops_for(file, source, line + 2, able) == ["GeluTanhFwdOp"]
    assert len(ops_for(file, source, 1, {file: tuple(f"A{n}FwdOp" for n in range(9))})) == 3


def mutant(area: str = "comparator", line: int = 1) -> Mutant:
    return Mutant(area, "pyproject.toml", "x", "operator", line, 0, 0, 1, "a", "b")


class Judge:
    def __init__(self, outcome: str) -> None:
        self.outcome, self.asked = outcome, 0

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        self.asked += 1
        return self.outcome, "said so"

    def close(self) -> None:
        return None


def test_a_finished_mutant_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judge = Judge("killed")
    monkeypatch.setattr(mutation, "_judge_of", lambda area, scratch: judge)
    state = tmp_path / "state.jsonl"
    mutation.run([mutant(line=1)], state)
    rows = mutation.run([mutant(line=1), mutant(line=2)], state)
    assert judge.asked == 2
    assert [row["outcome"] for row in rows] == ["killed", "killed"]


def test_what_shards_remember_adds_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutants = [mutant(line=line) for line in (1, 2, 3)]
    monkeypatch.setattr(mutation, "make_mutants", lambda root, areas: mutants)
    rows = [
        {"key": mutation.key_of(m), "id": m.id, "area": m.area, "mutant": str(m), "outcome": o, "detail": ""}
        for m, o in zip(mutants, ("killed", "survived"), strict=False)
    ]
    state, out = tmp_path / "state.jsonl", tmp_path / "figures.json"
    state.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0] | {"key": "of another text"}]))
    assert mutation.main(["--remembered", "--state", str(state), "--out", str(out)]) == 1
    found = json.loads(out.read_text())
    assert (found["of"], found["mutants"], found["killed"], found["survived"]) == (3, 2, 1, 1)


def test_a_survivor_is_judged_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    judge = Judge("survived")
    monkeypatch.setattr(mutation, "_judge_of", lambda area, scratch: judge)
    mutation.run([mutant()], tmp_path / "state.jsonl")
    judge.outcome = "killed"
    (row,) = mutation.run([mutant()], tmp_path / "state.jsonl")
    assert (row["outcome"], judge.asked) == ("killed", 2)


def test_a_survivor_is_equivalent_only_where_somebody_argues_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    argued = tmp_path / "equivalent.toml"
    argued.write_text(f'[[mutant]]\nid = "{mutant(line=1).id}"\nbecause = "why"\nread_by = "who"\n')
    monkeypatch.setattr(mutation, "EQUIVALENT", argued)
    monkeypatch.setattr(mutation, "_judge_of", lambda area, scratch: Judge("survived"))
    rows = mutation.run([mutant(line=1), mutant(line=2)], tmp_path / "state.jsonl")
    found = mutation.summary(rows, total=9)
    assert (found["mutants"], found["equivalent"], found["survived"], found["of"]) == (2, 1, 1, 9)
    assert [row["id"] for row in found["survivors"]] == [mutant(line=2).id]


def test_what_could_not_be_judged_is_no_kill() -> None:
    rows = [{"id": "1", "area": "kernels", "mutant": "m", "outcome": "unjudged", "detail": "d"}]
    found = mutation.summary(rows, total=1)
    assert (found["killed"], found["unjudged"], len(found["survivors"])) == (0, 1, 1)


def test_a_sample_takes_from_every_area_and_shards_share_nothing() -> None:
    mutants = [mutant(area, line) for area in mutation.AREAS for line in range(1, 9)]
    chosen = mutation.choose(mutants, 8, 0, (1, 1))
    assert {m.area for m in chosen} == set(mutation.AREAS)
    assert chosen == mutation.choose(mutants, 8, 0, (1, 1))
    parts = [mutation.choose(mutants, None, 0, (index, 3)) for index in (1, 2, 3)]
    assert sorted(m.id for part in parts for m in part) == sorted(m.id for m in mutants)


@pytest.mark.parametrize(
    ("killed", "equivalent", "survived", "unjudged", "enough"),
    [
        (19, 0, 1, 0, True),
        (18, 1, 1, 0, True),
        (18, 0, 2, 0, False),
        (0, 0, 0, 5, False),
        (19, 0, 1, 9, True),
    ],
)
def test_the_goal_is_a_share_of_what_was_judged(
    killed: int, equivalent: int, survived: int, unjudged: int, enough: bool
) -> None:
    total = killed + equivalent + survived + unjudged
    found = {"mutants": total, "killed": killed, "equivalent": equivalent, "unjudged": unjudged}
    assert mutation.reaches(found, 0.95) is enough


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(mutation.argparse.ArgumentTypeError):
        mutation._shard(text)


def test_every_argued_mutant_has_a_reason_and_a_second_reader() -> None:
    argued = mutation.tomllib.loads(mutation.EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    for row in argued:
        assert row["because"]
        assert row["read_by"]
    assert len({row["id"] for row in argued}) == len(argued)


def test_kept_figures_add_up() -> None:
    if not mutation.RESULT.is_file():
        pytest.fail(f"{mutation.RESULT} is missing: `hatch run tools:mutation` writes it")
    kept = json.loads(mutation.RESULT.read_text(encoding="utf-8"))
    assert kept["mutants"] == sum(kept[name] for name in mutation.OUTCOMES)
    assert kept["mutants"] <= kept["of"]


def test_oracles_are_judged_by_the_ops_that_their_file_defines() -> None:
    judge = object.__new__(mutation.SuiteJudge)
    judge._ops = {"softmax.py": ["SoftmaxFwdOp", "LogSoftmaxFwdOp"], "scan.py": ["CumsumFwdOp"]}
    at = "packages/tileops-tests/src/tileops_tests/oracles/"

    def chosen(name: str) -> str:
        return judge._selection(Mutant("oracles", at + name, "x", "operator", 1, 0, 0, 1, "a", "b"))

    assert chosen("softmax.py") == "LogSoftmaxFwdOp or SoftmaxFwdOp"
    assert chosen("arithmetic.py") == "CumsumFwdOp or LogSoftmaxFwdOp or SoftmaxFwdOp"
    assert judge._selection(mutant()) == ""
