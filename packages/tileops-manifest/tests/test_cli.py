"""The command line: what it prints and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tileops_manifest import __version__, load_manifest
from tileops_manifest.cli import main
from tileops_manifest.functions import FUNCTIONS


@pytest.fixture
def own(tmp_path: Path, base: str) -> Path:
    path = tmp_path / "own.yaml"
    path.write_text(base, encoding="utf-8")
    return path


def run_json(capsys, *arguments: str):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_names_every_entry(capsys):
    records = run_json(capsys, "list")
    assert [record["name"] for record in records] == list(load_manifest())
    assert main(["list"]) == 0
    assert "RMSNormFwdOp" in capsys.readouterr().out


def test_show_prints_the_signature_and_the_cases(capsys):
    record = run_json(capsys, "show", "RMSNormFwdOp")
    assert record["signature"] == "rms_norm(x, weight, normalized_shape, eps=1e-06) -> output"
    assert record["cases"][0]["flops"] == 4 * 2048 * 4096
    assert record["digest"] == load_manifest()["RMSNormFwdOp"].digest
    assert main(["show", "RMSNormFwdOp"]) == 0
    out = capsys.readouterr().out
    assert "llama-8b-prefill-float16" in out
    assert "equals norm" in out


def test_show_of_an_unknown_op_suggests_and_exits_2(capsys):
    assert main(["show", "RMSNormFwd"]) == 2
    assert "did you mean 'RMSNormFwdOp'?" in capsys.readouterr().err


def test_validate_counts_and_exits_0(capsys):
    record = run_json(capsys, "validate")
    assert sorted(record) == ["entries", "errors", "evaluated", "rows", "rules"]
    assert record["errors"] == []
    assert record["entries"] == len(load_manifest())
    assert record["evaluated"] > record["rules"] > 0


def test_validate_reports_all_errors_with_positions_and_exits_1(capsys, own: Path, base: str):
    own.write_text(
        base.replace("factor > 0", "fctor > 0").replace("prod(batch)", "prd(batch)"), encoding="utf-8"
    )
    assert main(["validate", "--manifest", str(own)]) == 1
    err = capsys.readouterr().err
    assert f"{own}:19:17: ScaleFwdOp: name 'fctor' is not bound; did you mean 'factor'?" in err
    assert f"{own}:21:24: ScaleFwdOp: unknown function 'prd'" in err
    assert main(["validate", "--json", "--manifest", str(own)]) == 1
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert [(error["line"], error["column"]) for error in errors] == [(19, 17), (21, 24)]


def test_other_commands_refuse_a_broken_manifest(capsys, own: Path):
    own.write_text("grammar: 1\n", encoding="utf-8")
    assert main(["list", "--manifest", str(own)]) == 1
    assert "field 'family' is missing" in capsys.readouterr().err


def test_entries_of_ones_own_are_listed(capsys, own: Path):
    assert main(["list", "--json", "--manifest", str(own)]) == 0
    assert [record["name"] for record in json.loads(capsys.readouterr().out)] == ["ScaleFwdOp"]


def test_diff_names_the_changes_and_the_version(capsys, own: Path, base: str, tmp_path: Path):
    new = tmp_path / "new.yaml"
    new.write_text(
        base.replace("float16 | float32", "float32").replace("[float16, float32]", "[float32]"),
        encoding="utf-8",
    )
    record = run_json(capsys, "diff", str(own), str(new))
    assert record["worst"] == "breaking"
    assert (record["from"], record["to"]) == (__version__, "0.2.0")
    assert main(["diff", str(own), str(new)]) == 0
    assert "breaking  ScaleFwdOp: inputs.x.dtype: no longer float16" in capsys.readouterr().out
    assert main(["diff", str(own), str(own)]) == 0
    assert capsys.readouterr().out == "no changes\n"


def test_schema_is_a_json_schema_that_knows_the_short_forms(capsys):
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert {"type": "string"} in schema["$defs"]["DimModel"]["anyOf"]
    assert schema["$defs"]["OpModel"]["additionalProperties"] is False


def test_docs_is_a_support_matrix(capsys):
    assert main(["docs"]) == 0
    out = capsys.readouterr().out
    assert all(f"| {name} |" in out for name in load_manifest())


def test_docs_of_the_language_name_every_function(capsys):
    assert main(["docs", "--language"]) == 0
    out = capsys.readouterr().out
    assert all(f"| `{name}(" in out for name in FUNCTIONS)
    assert "| `causal_scores(num_queries, num_keys)` |" in out


def test_new_prints_an_entry_that_validates(capsys, tmp_path: Path):
    assert main(["new", "MyThingFwdOp"]) == 0
    path = tmp_path / "mine.yaml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert list(load_manifest(path)) == ["MyThingFwdOp"]


def test_new_refuses_a_name_that_no_entry_may_have(capsys):
    assert main(["new", "my_thing"]) == 2
    assert "CamelCase" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["show"], ["diff", "only-one"]])
def test_wrong_usage_exits_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_a_full_disk_is_an_error():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "tileops_manifest", "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr == "error: cannot write: No space left on device\n"


def test_an_interrupt_exits_130(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("tileops_manifest.cli.load_manifest", interrupted)
    assert main(["list"]) == 130


def test_the_module_runs_and_survives_a_closed_pipe():
    command = f"{sys.executable} -m tileops_manifest show AddFwdOp --json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.stdout == "{\n"
    assert done.stderr == ""
