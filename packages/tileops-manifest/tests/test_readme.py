"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

from tileops_manifest import load_manifest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_example_runs(capsys):
    (code,) = blocks("python")
    exec(compile(code, "README.md", "exec"), {})
    assert "llama-8b-prefill-bfloat16" in capsys.readouterr().out


def test_the_entry_validates(tmp_path: Path):
    (text,) = blocks("yaml")
    path = tmp_path / "my_ops.yaml"
    path.write_text(text, encoding="utf-8")
    assert list(load_manifest(path)) == ["ScaledRMSNormFwdOp"]
