"""Every command's `--json` output against its schema in docs/schemas.

Runs the built program: $DRAFTFAST_BIN, or target/release/draftfast where it has been built.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from draftfast_vllm.sidecar import Sidecar

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "docs/schemas").glob("*.json"))}
SAMPLE = ROOT / "corpora/sample"
# In this order, in one folder: later commands read what earlier ones wrote.
RUNS = [
    ("synth", "synth qwen3.5-dense -o m"),
    ("synth", "synth qwen3.8-flash-next -o moe"),
    ("build", f"build m --corpus en={SAMPLE}/en --size 500 --hardware gb10 -o s"),
    ("build", f"build m --corpus en={SAMPLE}/en --size 500 --dry-run"),
    ("count", f"count m --corpus en={SAMPLE}/en --corpus code={SAMPLE}/code -o a.counts"),
    ("count", f"count m --corpus zh={SAMPLE}/zh.jsonl -o b.counts"),
    ("merge", "merge a.counts b.counts -o c.counts"),
    ("build-vocab", "build-vocab m --counts c.counts --size 400 --hardware gb10 -o v"),
    ("build-vocab", f"build-vocab m --corpus en={SAMPLE}/en --size 300 -o v2"),
    ("convert", "convert v ids.json -o ."),
    ("vocab-audit", "vocab audit v m"),
    ("vocab-diff", "vocab diff v v2 --counts c.counts"),
    ("quantize", "quantize m --vocab v -o q"),
    ("quantize", "quantize m --vocab v -o q2 --dry-run"),
    ("quantize", "quantize moe --vocab v -o qmoe --keep mtp.layers.0.self_attn.*"),
    ("export", "export q --layout compressed-tensors -o e"),
    ("diff", "diff s q --counts c.counts"),
    ("diff", "diff s s"),
    ("diff", "diff v v2"),
    ("verify", "verify s --model m"),
    ("verify-sha", "verify-sha s"),
    ("verify-sha", "verify-sha --write v"),
    ("inspect", "inspect m"),
    ("inspect", "inspect moe"),
    ("inspect", "inspect s"),
    ("inspect", "inspect v/draft_vocab.safetensors"),
    ("inspect", "inspect s/drafter.safetensors"),
    ("plan", "plan m --hardware gb10"),
    ("plan", "plan moe --bandwidth 1000 --baseline 50 --coverage v/vocabulary.json --acceptance 0.8 --k 3"),
    ("report", "report s"),
    ("bench", "bench --model m --dry-run"),
]
#: Files that hold the same as what a command prints.
FILES = [("plan", "s/plan.json"), ("plan", "v/plan.json")]


def validator(name: str) -> Any:
    resources = [(f"{stem}.json", referencing.Resource.from_contents(schema)) for stem, schema in SCHEMAS.items()]
    registry = referencing.Registry().with_resources(resources)
    return jsonschema.Draft202012Validator(SCHEMAS[name], registry=registry)


def program() -> Path:
    named = os.environ.get("DRAFTFAST_BIN")
    path = Path(named) if named else ROOT / "target/release/draftfast"
    if not named and not path.exists():
        pytest.skip("the program is not built: cargo build --release")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("schemas")


@pytest.mark.parametrize(
    ("name", "command"), RUNS, ids=[f"{i:02} {command[:40]}" for i, (_, command) in enumerate(RUNS)]
)
def test_output_is_as_the_schema_says(name: str, command: str, folder: Path) -> None:
    run = subprocess.run([program(), "--json", *command.split()], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    validator(name).validate(json.loads(run.stdout))


@pytest.mark.parametrize(("name", "file"), FILES)
def test_files_are_as_the_schema_says(name: str, file: str, folder: Path) -> None:
    program()
    validator(name).validate(json.loads((folder / file).read_text()))


@pytest.mark.parametrize("sidecar", ["s", "q"])
def test_the_plugin_reads_what_the_program_wrote(sidecar: str, folder: Path) -> None:
    program()
    opened = Sidecar.open(folder / sidecar)
    opened.verify_drafter()
    opened.check_scales()
    # Of six documents none may fall into the tenth that is held out.
    assert opened.coverage() == "coverage not measured" or re.fullmatch(
        r"covering (\w+ [\d.]+ %(, )?)+ of (held-out text|the text they were chosen from)", opened.coverage()
    )


def test_a_damaged_sidecar_is_reported_as_the_schema_says(folder: Path) -> None:
    tool, damaged = program(), folder / "s/config.json"
    damaged.write_text(damaged.read_text() + " ")
    run = subprocess.run([tool, "--json", "verify-sha", "s"], cwd=folder, capture_output=True, text=True)
    assert run.returncode == 1
    found = json.loads(run.stdout)
    validator("verify-sha").validate(found)
    assert not found["ok"] and found["n_failed"] == 1


def test_figures_of_a_gpu_are_as_the_schema_says() -> None:
    for path in (ROOT / "docs/bench").glob("*.json"):
        validator("bench").validate(json.loads(path.read_text()))


def test_a_value_of_another_type_or_one_more_key_is_refused() -> None:
    good = {"output": "m", "family": "x", "seed": 0, "n_bytes": 1}
    validator("synth").validate(good)
    for change in ({"n_bytes": "1"}, {"n_bytes": -1}, {"more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            validator("synth").validate(good | change)


def test_every_command_has_a_schema_and_every_schema_a_command() -> None:
    text = subprocess.run([program(), "help"], capture_output=True, text=True, check=True).stdout
    commands = re.findall(r"^  ([a-z-]+) ", text.split("Commands:")[1].split("Options:")[0], re.M)
    expected = {*commands, "vocab-audit", "vocab-diff", "parts"} - {"help", "vocab"}
    assert set(SCHEMAS) == expected
    assert {name for name, _ in RUNS} == expected - {"parts"}
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$id"] == f"{name}.json"
