"""Real vLLM on a CPU against known text: `run.py WORK_DIR [WORD...]`, started by `run` with the right Python.

The model's text is a chain, so for any draft vocabulary the accepted tokens at each draft position follow by counting
(`World.expected_counters`). Every case that serves must give the same ids and exactly those counters.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import makers
from generate import MAX_TOKENS, PROMPTS

HERE = Path(__file__).parent
K = 3
N_PER_PROCESS = 6
UNTOUCHED = {
    "lm_head_is_the_targets": True, "logits_processor": "LogitsProcessor", "fc_method": "UnquantizedLinearMethod",
    "target_head_is_bf16": True, "local_argmax": False,
}  # fmt: skip
REPLACED = {
    "lm_head_is_the_targets": False, "logits_processor": "DraftLogits", "fc_method": "Nvfp4Method",
    "target_head_is_bf16": True, "local_argmax": True, "differing": [],
}  # fmt: skip


COLLECT_ALL = {"collect_second_moments": True, "collect_states": 4096}
COLLECTED = {
    "names": True, "columns": True, "diagonals": True, "states": True, "fused_alike": True, "combiner_sees_embeddings": True,
    "counts": True,
}  # fmt: skip


class World:
    """The model, its chain, and the kept ids of the sidecars in a scratch folder."""

    def __init__(self, work: Path) -> None:
        self.work, self.model = work, work / "model"
        if not (self.model / "chain.json").is_file():
            subprocess.run([sys.executable, HERE / "make_model.py", self.model], check=True)
        self.next_id: list[int] = json.loads((self.model / "chain.json").read_text())
        self.tokens = [self.text(prompt[-1], MAX_TOKENS + K + 1) for prompt in PROMPTS]
        needed = {token for text in self.tokens for token in text}
        # Needed ids that the small vocabulary misses: early, in the middle, twice within one draft, and near the end.
        dropped = {self.tokens[0][2], self.tokens[0][9], self.tokens[0][11], self.tokens[1][1], self.tokens[1][30]}
        self.kept = {"all": sorted(needed | set(range(1024))), "some": sorted((needed | set(range(1024))) - dropped)}

    def text(self, token: int, n: int) -> list[int]:
        """The n tokens after this one."""
        out = []
        for _ in range(n):
            token = self.next_id[token]
            out.append(token)
        return out

    def expected(self, kept: str | None) -> dict[str, Any]:
        """What an engine must give with these kept ids; None: without speculation."""
        tokens = {"tokens": [text[:MAX_TOKENS] for text in self.tokens]}
        return tokens if kept is None else tokens | self.expected_counters(set(self.kept[kept]))

    def expected_counters(self, kept: set[int]) -> dict[str, Any]:
        """A step drafts the next K ids of the chain and accepts them up to the first that is not kept."""
        per_position, n_drafts = [0] * K, 0
        for text in self.tokens:
            n_out = 1
            while n_out < MAX_TOKENS:
                n_accepted = next((i for i in range(K) if text[n_out + i] not in kept), K)
                per_position = [count + (i < n_accepted) for i, count in enumerate(per_position)]
                n_drafts, n_out = n_drafts + 1, n_out + n_accepted + 1
        return {
            "num_drafts": n_drafts, "num_draft_tokens": n_drafts * K, "num_accepted_tokens": sum(per_position),
            "num_accepted_tokens_per_pos": per_position,
        }  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An engine that must serve (`kept`: which ids its drafter has) or must refuse with a sentence."""

    name: str
    options: dict[str, Any]
    kept: str | None = "all"
    probe: dict[str, Any] | None = None
    refuses: str | None = None

    @property
    def process(self) -> tuple[Any, ...]:
        """Cases with the same one share a process."""
        return tuple(self.options.get(key) for key in ("runner", "tp", "subprocess", "compile", "emulate"))

    def wrong(self, world: World, result: dict[str, Any] | None, log: str) -> str | None:
        """What is wrong with the result; None if it is as it must be."""
        if result is None:
            return f"the process died: {log.strip().splitlines()[-1][:300] if log.strip() else 'without a word'}"
        refused = result.get("refused")
        if self.refuses is not None:
            if refused is None:
                return "it served"
            # An engine in a process of its own says why in the log.
            return None if re.search(self.refuses, refused + log) else f"no `{self.refuses}` in\n{refused[-1000:]}"
        if refused is not None:
            return f"it refused\n{refused[-1000:]}"
        expected = world.expected(self.kept) | ({"probe": self.probe} if self.probe else {})
        different = [
            f"{key} is {result.get(key)}, expected {value}"
            for key, value in expected.items()
            if result.get(key) != value
        ]
        return "; ".join(different) or None


def sidecar(name: str, **more: Any) -> dict[str, Any]:
    """The options of an engine with this sidecar."""
    return {"k": K, "additional": {"draftfast": {"sidecar": f"@WORK/{name}", **more}}}


SERVING = [
    Case("no speculation", {}, None),
    Case("native MTP, plugin off", {"k": K, "probe": "off"}, "all", UNTOUCHED),
    Case("sidecar", {"probe": "@WORK/all", **sidecar("all")}, "all", REPLACED),
    Case("needed ids missing", {"probe": "@WORK/some", **sidecar("some")}, "some", REPLACED),
    Case("rows repeated to a multiple of 64", sidecar("padded"), "some"),
    Case("linears kept in BF16", sidecar("some", keep_bf16=["mtp.*"]), "some"),
    Case("sidecar by install", {"k": K, "install": {"sidecar": "@WORK/some"}}, "some"),
    Case("sidecar from the environment", {"k": K, "environment": {"DRAFTFAST_SIDECAR": "@WORK/some"}}, "some"),
    Case("the seed's mask", {"k": K, "additional": {"draftfast": {"mask": "@WORK/some.pt", "keep_bf16": ["*"]}}}, "some"),
    Case("collecting", {"k": K, "collected": "@WORK/collected", "additional": {"draftfast": {"collect": "@WORK/collected", **COLLECT_ALL}}}, "all", COLLECTED),
    Case("collecting with a sidecar", {"collected": "@WORK/collected2", **sidecar("some", collect="@WORK/collected2", **COLLECT_ALL)}, "some", COLLECTED),
    Case("native MTP again, plugin off", {"k": K, "probe": "off"}, "all", UNTOUCHED),
    Case("runner V2, native MTP, plugin off", {"k": K, "runner": 2}),
    Case("runner V2, sidecar", {"runner": 2, **sidecar("all")}),
    Case("runner V2, needed ids missing", {"runner": 2, **sidecar("some")}, "some"),
    Case("runner V2, logits instead of ids (probabilistic)", {"runner": 2, "probabilistic": True, **sidecar("some")}, "some"),
    Case("tensor parallel 2, sidecar", {"tp": 2, **sidecar("all")}),
    Case("tensor parallel 2, needed ids missing", {"tp": 2, **sidecar("some")}, "some"),
    Case("tensor parallel 2, an odd number of rows, logits", {"tp": 2, "probabilistic": True, **sidecar("odd")}, "some"),
    *[Case(f"tensor parallel {tp}, rounded by error feedback, rows shifted", {"tp": tp, **sidecar("gptq")}, "some") for tp in (1, 2) if makers.PROGRAM],
    Case("tensor parallel 2, the seed's mask", {"tp": 2, "k": K, "additional": {"draftfast": {"mask": "@WORK/some.pt", "keep_bf16": ["*"]}}}, "some"),
    Case("engine in a subprocess, sidecar from the environment", {"k": K, "subprocess": True, "environment": {"DRAFTFAST_SIDECAR": "@WORK/some"}}, "some"),
    Case("compiled, needed ids missing", {"compile": True, **sidecar("some")}, "some"),
    Case("our products as ops, emulated", {"emulate": True, "probe": "@WORK/some", **sidecar("some", backend="draftfast")}, "some", REPLACED),
    Case("compiled, our products as ops, emulated", {"emulate": True, "compile": True, **sidecar("some", backend="draftfast")}, "some"),
    Case("runner V2, our products as ops, emulated", {"emulate": True, "runner": 2, **sidecar("some", backend="draftfast")}, "some"),
]  # fmt: skip


def prepare(world: World) -> None:
    """The sidecars that the cases name."""
    import torch

    kept = world.kept
    makers.make(world.model, world.work / "all", kept["all"])
    makers.make(world.model, world.work / "some", kept["some"])
    makers.make_by_error_feedback(world.model, world.work / "gptq", kept["some"])
    makers.make(world.model, world.work / "padded", kept["some"], pad_to=64)
    makers.make(
        world.model, world.work / "odd", kept["some"], pad_to=2 * len(kept["some"]) // 2 + 1 - len(kept["some"]) % 2
    )
    mask = torch.zeros(len(world.next_id), dtype=torch.bool)
    mask[kept["some"]] = True
    torch.save(mask, world.work / "some.pt")


def batches(cases: list[Case]) -> list[list[Case]]:
    """Cases that can share a process, a few each: an engine's cache outlives it."""
    found = []
    for process in dict.fromkeys(case.process for case in cases):
        alike = [case for case in cases if case.process == process]
        found += [alike[i : i + N_PER_PROCESS] for i in range(0, len(alike), N_PER_PROCESS)]
    return found


def run_process(world: World, cases: list[Case], log_path: Path) -> list[str | None]:
    """Runs cases in one process, whose words go to a file to follow; what is wrong with each."""
    options = json.loads(json.dumps([case.options for case in cases]).replace("@WORK", str(world.work)))
    command = [sys.executable, str(HERE / "generate.py"), str(world.model), json.dumps(options)]
    with open(log_path, "w") as out:
        # A PYTHONPATH that is set may lead to another version of vLLM.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        subprocess.run(command, stdout=out, stderr=subprocess.STDOUT, env=environment, timeout=7200)
    log = log_path.read_text()
    results = [json.loads(line.removeprefix("RESULT ")) for line in log.splitlines() if line.startswith("RESULT ")]
    padded = [*results, *[None] * (len(cases) - len(results))]
    return [case.wrong(world, result, log) for case, result in zip(cases, padded, strict=True)]


def main(work: Path, words: list[str]) -> int:
    """Exit status: 1 if a case failed or none ran."""
    import refusals

    world = World(work)
    prepare(world)
    cases = [case for case in SERVING + refusals.cases(world) if not words or any(word in case.name for word in words)]
    n_passed = n_failed = 0
    for number, batch in enumerate(batches(cases)):
        for case, wrong in zip(batch, run_process(world, batch, work / f"process-{number}.log"), strict=True):
            n_passed, n_failed = n_passed + (wrong is None), n_failed + (wrong is not None)
            print(
                f"{'ok    ' if wrong is None else 'FAILED'} {case.name}" + (f": {wrong}" if wrong else ""), flush=True
            )
    print(f"{n_passed} passed, {n_failed} failed")
    return 1 if n_failed or not n_passed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
