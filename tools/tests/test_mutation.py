"""Mutants are made where they matter, judged once, and no survivor is called anything else."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import mutation
from boundary.model import StageTable
from mutants.judges import Said
from mutants.make import Mutant, make_mutants, program_lines
from mutants.ops import Users, ops_for, users
from mutants.state import CASES, SUITES, digest, key_of, remembered, still_holds, witnesses

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


@pytest.fixture(scope="module")
def everybody(table: StageTable) -> Users:
    return users(ROOT, table)


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


def test_a_mutant_keeps_its_id_where_other_lines_come_and_go(tree: Path) -> None:
    before = by_area(tree, "kernels")
    place = tree / before[0].file
    place.write_text(
        place.read_text(encoding="utf-8").replace("MOST = 1 + 2", "MOST = 3\n\n"), encoding="utf-8"
    )
    after = by_area(tree, "kernels")
    assert [m.id for m in after] == [m.id for m in before]
    assert {a.line - b.line for a, b in zip(after, before, strict=True)} == {2}


def test_a_mutant_of_another_text_is_refused(tree: Path) -> None:
    found = by_area(tree, "kernels")[0]
    with pytest.raises(ValueError, match=r"scaled\.py has changed"):
        found.apply(b"\n" + (tree / found.file).read_bytes())


def test_words_are_not_mutated(tree: Path) -> None:
    place = tree / "packages/tileops-tests/src/tileops_tests/oracles/scaled.py"
    said = 'def f(x: Literal[1] = 2) -> T[1]:\n    y: T[1] = f"{x + 1}"\n    raise ValueError(1 + 2)\n'
    place.write_text(said, encoding="utf-8")
    assert [(m.before, m.line) for m in by_area(tree, "oracles")] == [("2", 1)]


def test_every_kernel_file_has_ops_that_judge_it(everybody: Users) -> None:
    files = {mutant.file for mutant in make_mutants(ROOT, ["kernels"])}
    assert [file for file in files if not everybody.ops[file]] == []


def test_a_file_is_part_of_its_own_module_and_of_those_that_import_it(everybody: Users) -> None:
    found = everybody.modules
    package = "tileops_kernels.kernels"
    file = next(file for file in found if file.endswith("/rowwise_norm.py"))
    assert {f"{package}.rowwise_norm", f"{package}.rms_norm"} <= set(found[file])
    assert f"{package}.gemm" not in found[file]


def test_a_mutant_of_one_expression_is_judged_by_its_own_op(everybody: Users) -> None:
    file = next(file for file in everybody.ops if file.endswith("elementwise_expressions.py"))
    source = (ROOT / file).read_text(encoding="utf-8")
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.startswith("def gelu_tanh("))
    able = {file: ("ReluFwdOp", "GeluTanhFwdOp", "GeluTanhAndMulFwdOp", "ExpFwdOp")}
    assert ops_for(file, source, line + 2, able) == ["GeluTanhFwdOp"]
    assert ops_for(file, source, 1, able) == list(able[file])


def mutant(area: str = "comparator", line: int = 1) -> Mutant:
    return Mutant(area, "pyproject.toml", "x", "operator", line, 0, 0, 1, "a", "b", f"line {line}")


class Judge:
    """Says what it is told to say."""

    def __init__(self, outcome: str) -> None:
        self.outcome, self.asked = outcome, 0

    def __call__(self, root: Path, area: str, scratch: Path) -> Judge:
        return self

    def judge(self, mutant: Mutant) -> Said:
        self.asked += 1
        return Said(self.outcome, "said so")

    def close(self) -> None:
        return None


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    made = Judge("killed")
    monkeypatch.setattr(mutation, "Judge", made)
    return made


def run(mutants: list[Mutant], state: Path, minutes: float | None = None) -> list[dict]:
    return list(mutation.run(mutants, state, remembered([state]), minutes))


@pytest.mark.parametrize(("outcome", "asked"), [("killed", 2), ("survived", 2), ("unjudged", 3)])
def test_a_finished_mutant_is_remembered_and_one_that_nobody_judged_is_not(
    judge: Judge, tmp_path: Path, outcome: str, asked: int
) -> None:
    judge.outcome = outcome
    state = tmp_path / "state.jsonl"
    run([mutant(line=1)], state)
    rows = run([mutant(line=1), mutant(line=2)], state)
    assert judge.asked == asked
    assert [row["outcome"] for row in rows] == [outcome] * 2


def test_no_mutant_is_begun_after_the_last_minute_and_what_is_known_counts(
    judge: Judge, tmp_path: Path
) -> None:
    state = tmp_path / "state.jsonl"
    run([mutant(line=1)], state)
    rows = run([mutant(line=2), mutant(line=1)], state, minutes=-1.0)
    assert ([row["id"] for row in rows], judge.asked) == ([mutant(line=1).id], 1)


def test_an_outcome_holds_while_the_file_and_what_judged_it_are_the_same(tree: Path) -> None:
    suite = "packages/tileops-manifest/tests"
    (tree / suite).mkdir(parents=True)
    for name in ("test_rooflines.py", "kept_rooflines.py", "rooflines.json"):
        (tree / suite / name).write_text("0", encoding="utf-8")
    found = by_area(tree, "rooflines")[0]

    def change(place: str) -> None:
        (tree / place).write_text((tree / place).read_text(encoding="utf-8") + "\n", encoding="utf-8")
        digest.cache_clear()

    def row(outcome: str, *by: str) -> dict:
        return {"outcome": outcome, "by": witnesses(tree, found, outcome, by)}

    rows = [row("killed", f"{suite}/test_rooflines.py"), row("killed"), row("survived", "never asked")]
    assert [still_holds(tree, r) for r in (*rows, row("unjudged"))] == [True, True, True, False]
    change(f"{suite}/rooflines.json")
    assert [still_holds(tree, r) for r in rows] == [True, False, False]
    change(f"{suite}/test_rooflines.py")
    assert not still_holds(tree, rows[0])
    (tree / suite / "test_rooflines.py").unlink()
    assert not still_holds(tree, rows[0])
    key = key_of(tree, found)
    change(found.file)
    assert key_of(tree, found) != key


@pytest.mark.parametrize(("outcome", "counts"), [("survived", 1), ("unobservable", 1), ("killed", 0)])
def test_figures_are_not_flattered_by_what_has_not_been_judged_again(
    judge: Judge, tmp_path: Path, outcome: str, counts: int
) -> None:
    judge.outcome = outcome
    state = tmp_path / "state.jsonl"
    run([mutant()], state)
    row = json.loads(state.read_text(encoding="utf-8"))
    state.write_text(json.dumps(row | {"by": dict.fromkeys(row["by"], "of old")}) + "\n", encoding="utf-8")
    assert len(run([mutant()], state, minutes=-1.0)) == counts
    run([mutant()], state)
    assert judge.asked == 2


def test_a_kernel_that_cases_killed_does_not_depend_on_other_tests() -> None:
    assert set(witnesses(ROOT, mutant("kernels"), "killed")) == set(CASES) < set(SUITES["kernels"])
    assert set(witnesses(ROOT, mutant("kernels"), "device")) == set(SUITES["kernels"])


def test_state_files_add_up_and_a_judgement_is_not_lost_to_none(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    one.write_text(json.dumps({"key": "a", "outcome": "killed"}) + "\n", encoding="utf-8")
    two.write_text(
        "".join(json.dumps({"key": key, "outcome": "unjudged"}) + "\n" for key in "ab"), encoding="utf-8"
    )
    found = remembered([one, two, tmp_path / "none.jsonl"])
    assert {key: row["outcome"] for key, row in found.items()} == {"a": "killed", "b": "unjudged"}


def test_what_shards_remember_adds_up(judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mutants = [mutant(line=line) for line in (1, 2, 3)]
    monkeypatch.setattr(mutation, "make_mutants", lambda root, areas: mutants)
    states = [tmp_path / f"{number}.jsonl" for number in (1, 2)]
    for number, state in enumerate(states, 1):
        assert mutation.main(["--shard", f"{number}/2", "--state", str(state), "--sample", "2"]) == 0
    out = tmp_path / "figures.json"
    words = ["--remembered", "--merge", str(states[0]), "--state", str(states[1]), "--out", str(out)]
    assert mutation.main(words) == 0
    found = json.loads(out.read_text(encoding="utf-8"))
    assert (found["of"], found["mutants"], found["killed"], judge.asked) == (3, 2, 2, 2)
    assert found["areas"]["comparator"]["of"] == 3


@pytest.mark.parametrize(("reader", "outcome"), [("who", "equivalent"), ("", "survived")])
def test_a_survivor_is_equivalent_only_where_somebody_argues_it_and_another_has_read_it(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reader: str, outcome: str
) -> None:
    argued = tmp_path / "equivalent.toml"
    argued.write_text(f'[[mutant]]\nid = "{mutant(line=1).id}"\nbecause = "why"\nread_by = "{reader}"\n')
    monkeypatch.setattr(mutation, "EQUIVALENT", argued)
    judge.outcome = "survived"
    rows = run([mutant(line=1), mutant(line=2)], tmp_path / "state.jsonl")
    assert [row["outcome"] for row in rows] == [outcome, "survived"]
    assert "why" in rows[0]["detail"]
    found = mutation.summary(rows, Counter(comparator=9))
    assert (found["mutants"], found["of"], found[outcome]) == (2, 9, 1 if reader else 2)
    assert mutant(line=2).id in [row["id"] for row in found["survived_mutants"]]


def test_what_could_not_be_judged_is_no_kill() -> None:
    rows = [{"id": "1", "area": "kernels", "mutant": "m", "outcome": "unjudged", "detail": "d"}]
    found = mutation.summary(rows, Counter(kernels=1))
    assert (found["killed"], found["unjudged"], len(found["unjudged_mutants"])) == (0, 1, 1)
    assert not mutation.reaches(found, 0.95)


def test_a_beginning_of_the_order_takes_from_every_area_and_shards_share_nothing() -> None:
    mutants = [mutant(area, line) for area in mutation.AREAS for line in range(1, 9)]
    ordered = mutation.in_order(mutants, 0)
    assert {m.area for m in ordered[:4]} == set(mutation.AREAS)
    assert ordered == mutation.in_order(reversed(mutants), 0) != mutation.in_order(mutants, 1)
    assert sorted(map(id, ordered)) == sorted(map(id, mutants))


@pytest.mark.parametrize(
    ("killed", "equivalent", "survived", "others", "enough"),
    [
        (19, 0, 1, 0, True),
        (18, 1, 1, 0, True),
        (18, 0, 2, 0, False),
        (0, 0, 0, 5, False),
        (19, 0, 1, 9, True),
    ],
)
def test_the_goal_is_a_share_of_what_was_judged(
    killed: int, equivalent: int, survived: int, others: int, enough: bool
) -> None:
    found = {"killed": killed, "equivalent": equivalent, "survived": survived}
    for name in ("unobservable", "device", "unjudged"):
        assert mutation.reaches(found | {name: others}, 0.95) is enough


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(mutation.argparse.ArgumentTypeError):
        mutation._shard(text)


def test_every_argued_mutant_exists_and_has_a_reason_of_one_line() -> None:
    rows = mutation.tomllib.loads(mutation.EQUIVALENT.read_text(encoding="utf-8")).get("mutant", [])
    assert len(mutation.argued()) == len(rows)
    there = {m.id for m in make_mutants(ROOT, mutation.AREAS)} if rows else set()
    for row in rows:
        assert row["id"] in there
        assert row["because"]
        assert "\n" not in row["because"]
        assert isinstance(row["read_by"], str)


def test_kept_figures_add_up() -> None:
    kept = json.loads(mutation.RESULT.read_text(encoding="utf-8"))
    for found in (kept, *kept["areas"].values()):
        assert found["mutants"] == sum(found[name] for name in mutation.OUTCOMES)
        assert found["mutants"] <= found["of"]
    for name in ("survived", "equivalent", "unjudged"):
        assert len(kept[f"{name}_mutants"]) == kept[name]
