"""Engines side by side, measured in turn: `compare.py WORK OUT SECONDS SETTING...` (see `engines.Setting`).

Starting an engine takes minutes of one core, a request takes a second of the GPU. So all start at once, and answer a round
each in turn: what slows the machine for a while slows all of them. While one answers, the others are stopped (SIGSTOP), so
that no waiting thread of theirs takes a core. Every second round its processes are bound to cores of their own, as `taskset`
would, and these rounds are counted apart. An engine that dies costs its own row.
Writes `OUT.json` as it goes and `OUT.txt`; logs are `WORK/NAME.log`.
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from engines import Engine, Setting

# The first is a warm-up; then free and bound in turn.
N_ROUNDS = 27


def summary(engine: Engine) -> dict[str, Any]:
    """Medians over the rounds, free and bound."""
    rounds = [answer for answer in engine.rounds[1:] if "tokens_per_s" in answer]
    found: dict[str, Any] = dict(engine.answer)
    if not rounds:
        return found | {"rounds": engine.rounds}
    for name, bound in (("free", False), ("bound", True)):
        speeds = [r["tokens_per_s"] for r in rounds if r["bound"] == bound]
        if speeds:
            found[f"{name}_tokens_per_s"] = round(statistics.median(speeds), 1)
            found[f"{name}_best"] = round(max(speeds), 1)
    found["text_is_the_chain"] = all(r["text_is_the_chain"] for r in rounds)
    found["n_steps"] = rounds[-1]["n_steps"]
    times = [r["draft_us"] for r in rounds if r["draft_us"]]
    found["draft_us"] = round(statistics.median(times), 1) if times else None
    return found | {"rounds": engine.rounds}


def table(found: list[dict[str, Any]]) -> str:
    """One row an engine, with ratios to native MTP and to the seed's recipe of the same group."""

    def peer(row: dict[str, Any], mode: str) -> dict[str, Any]:
        alike = ("layers", "k", "n_gpus", "processes")
        return next((r for r in found if r["mode"] == mode and all(r[key] == row[key] for key in alike)), {})

    def ratio(row: dict[str, Any], key: str, mode: str, inverse: bool = False) -> str:
        a, b = row.get(key), peer(row, mode).get(key)
        return f"{(b / a if inverse else a / b):.2f}x" if a and b else "-"

    def speed(row: dict[str, Any], name: str) -> str:
        key = f"{name}_tokens_per_s"
        return f"{row.get(key, '-'):>8} {ratio(row, key, 'native'):>7} {ratio(row, key, 'seed'):>7} {row.get(f'{name}_best', '-'):>8}"

    titles = "".join(f"{name:>8} {'/native':>7} {'/seed':>7} {'best':>8} " for name in ("free", "bound"))
    lines = [f"{'engine':13} {'layers':>6} {'k':>2} {'GPUs':>4} {'procs':>5} {titles}{'steps':>5} {'draft us':>8} {'head us':>7} {'/seed':>6} {'MiB':>5}  text"]  # fmt: skip
    for row in found:
        verdict = {True: "the chain", False: "NOT THE CHAIN", None: "-"}[row.get("text_is_the_chain")]
        lines.append(
            f"{row['mode']:13} {row['layers']:>6} {row['k']:>2} {row['n_gpus']:>4} {row['processes']:>5} {speed(row, 'free')} {speed(row, 'bound')} "
            f"{row.get('n_steps', '-'):>5} {row.get('draft_us') or '-':>8} {round(row.get('head_us_m1', 0), 1) or '-':>7} "
            f"{ratio(row, 'head_us_m1', 'seed', True):>6} {round(row.get('drafter_bytes', 0) / 2**20) or '-':>5}  "
            f"{'died' if 'died' in row else verdict}"
        )
    return "\n".join(lines)


def measure(engines: list[Engine]) -> None:
    """The engines of one group in turn."""
    for number in range(N_ROUNDS):
        bound = number % 2 == 1
        for engine in engines:
            if engine.dead:
                continue
            engine.bind(bound)
            answer = engine.ask("round")
            if answer is not None:
                engine.rounds.append(answer | {"bound": bound})
    for engine in engines:
        engine.bind(False)
        engine.answer |= (None if engine.dead else engine.ask("finish")) or {}


def main(work: Path, out: Path, seconds: float, settings: list[str]) -> int:
    """Exit status: 1 if an engine died or its text is wrong."""
    deadline = time.monotonic() + seconds
    engines: list[Engine] = []

    def end(*_: object) -> None:
        for engine in engines:
            engine.signal(signal.SIGKILL)
        sys.exit(1)

    signal.signal(signal.SIGTERM, end)
    engines += [Engine(Setting.parse(setting), work) for setting in settings]
    for engine in engines:
        engine.answer |= engine.hear(deadline) or {}
        print(f"{engine.setting.name}: {engine.answer}", flush=True)
    for engine in engines:
        engine.signal(signal.SIGSTOP)
    found: list[dict[str, Any]] = []
    groups: dict[str, list[Engine]] = {}
    for engine in engines:
        groups.setdefault(str(engine.setting.group), []).append(engine)
    for group in groups.values():
        measure(group)
        found = [summary(engine) for engine in engines]
        out.with_suffix(".json").write_text(json.dumps(found, indent=1))
        out.with_suffix(".txt").write_text(table(found) + "\n")
    for engine in engines:
        engine.signal(signal.SIGKILL)
    print(table(found))
    return 0 if all(row.get("text_is_the_chain") for row in found) else 1


if __name__ == "__main__":
    work, out = Path(sys.argv[1]), Path(sys.argv[2])
    sys.exit(main(work, out, float(sys.argv[3]), sys.argv[4:]))
