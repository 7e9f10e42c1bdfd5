"""Engines side by side on one GPU, measured in turn: `compare.py WORK OUT [SECONDS] [MODE...]`.

Starting an engine takes minutes of one core, a request takes a second of the GPU. So all start at once, and answer a round
each in turn, twelve times: what slows the machine for a while slows all of them. While one answers, the others are stopped
(SIGSTOP), so that no waiting thread of theirs takes a core. An engine that dies costs its own row.
Writes `OUT/results.json` as it goes and `OUT/table.txt`; logs are `WORK/MODE.log`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, Queue
from typing import Any

HERE = Path(__file__).parent
MODES = ("native", "sidecar", "seed", "none", "full-head", "sidecar-vllm", "missing-ids")
N_ROUNDS, ROUND_SECONDS = 13, 60


class Engine:
    """A process, and what it has answered."""

    def __init__(self, mode: str, work: Path) -> None:
        self.mode, self.rounds, self.said = mode, [], Queue()
        self.answer: dict[str, Any] = {"mode": mode}
        self.log = work / f"{mode}.log"
        environment = os.environ | {"VLLM_CACHE_ROOT": str(work / f"cache-{mode}")}
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), mode, str(work)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1, env=environment,
                start_new_session=True,
            )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in self.process.stdout or ():
            self.said.put(line)
        self.said.put(None)

    def hear(self, deadline: float) -> dict[str, Any] | None:
        """The next answer; None: the process died or is late, and is ended."""
        try:
            line = self.said.get(timeout=max(deadline - time.monotonic(), 0.01))
        except Empty:
            line = None
        if line is None:
            self.signal(signal.SIGKILL)
            self.answer["died"] = True
            return None
        return json.loads(line)

    def ask(self, what: str) -> dict[str, Any] | None:
        """One question, one answer; stopped before and after."""
        self.signal(signal.SIGCONT)
        try:
            print(what, file=self.process.stdin)
        except OSError:
            return None
        answer = self.hear(time.monotonic() + ROUND_SECONDS)
        self.signal(signal.SIGSTOP)
        return answer

    def signal(self, which: signal.Signals) -> None:
        """To all its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)

    @property
    def dead(self) -> bool:
        return "died" in self.answer


def summary(engine: Engine) -> dict[str, Any]:
    """Medians over the rounds; the first is a warm-up."""
    rounds = [answer for answer in engine.rounds[1:] if "tokens_per_s" in answer]
    found: dict[str, Any] = dict(engine.answer)
    if rounds:
        found["tokens_per_s"] = round(statistics.median(r["tokens_per_s"] for r in rounds), 1)
        found["best_tokens_per_s"] = round(max(r["tokens_per_s"] for r in rounds), 1)
        found["text_is_the_chain"] = all(r["text_is_the_chain"] for r in rounds)
        found["n_steps"] = rounds[-1]["n_steps"]
        times = [r["draft_us"] for r in rounds if r["draft_us"]]
        found["draft_us"] = round(statistics.median(times), 1) if times else None
    return found | {"rounds": engine.rounds}


def table(found: list[dict[str, Any]]) -> str:
    """One row an engine, with ratios to native MTP and to the seed's recipe."""
    by_mode = {row["mode"]: row for row in found}

    def ratio(row: dict[str, Any], key: str, to: str, inverse: bool) -> str:
        a, b = row.get(key), by_mode.get(to, {}).get(key)
        return f"{(b / a if inverse else a / b):.2f}x" if a and b else "-"

    lines = [
        f"{'engine':18} {'tok/s':>8} {'/native':>8} {'/seed':>7} {'best':>8} {'draft us':>9} {'head us':>8} {'/seed':>7} {'MiB':>7}  text"
    ]
    for row in found:
        lines.append(
            f"{row['mode']:18} {row.get('tokens_per_s', '-'):>8} {ratio(row, 'tokens_per_s', 'native', False):>8} "
            f"{ratio(row, 'tokens_per_s', 'seed', False):>7} {row.get('best_tokens_per_s', '-'):>8} {row.get('draft_us') or '-':>9} {round(row.get('head_us_m1', 0), 1) or '-':>8} "
            f"{ratio(row, 'head_us_m1', 'seed', True):>7} {round(row.get('drafter_bytes', 0) / 2**20) or '-':>7}  "
            f"{'died' if 'died' in row else {True: 'the chain', False: 'NOT THE CHAIN', None: '-'}[row.get('text_is_the_chain')]}"
        )  # fmt: skip
    return "\n".join(lines)


def main(work: Path, out: Path, seconds: float, modes: list[str]) -> int:
    """Exit status: 1 if an engine died or its text is wrong."""
    deadline = time.monotonic() + seconds
    engines = [Engine(mode, work) for mode in modes or MODES]

    def write() -> list[dict[str, Any]]:
        found = [summary(engine) for engine in engines]
        (out / "results.json").write_text(json.dumps(found, indent=1))
        return found

    for engine in engines:
        engine.answer |= engine.hear(deadline) or {}
        print(f"{engine.mode}: {engine.answer}", flush=True)
    for engine in engines:
        engine.signal(signal.SIGSTOP)
    for _ in range(N_ROUNDS):
        for engine in engines:
            answer = None if engine.dead else engine.ask("round")
            if answer is not None:
                engine.rounds.append(answer)
        write()
    for engine in engines:
        engine.answer |= (None if engine.dead else engine.ask("finish")) or {}
        write()
    found = write()
    for engine in engines:
        engine.signal(signal.SIGKILL)
    (out / "table.txt").write_text(table(found) + "\n")
    print(table(found))
    return 0 if all(row.get("text_is_the_chain") for row in found) else 1


if __name__ == "__main__":
    work, out = Path(sys.argv[1]), Path(sys.argv[2])
    sys.exit(main(work, out, float(sys.argv[3]) if len(sys.argv) > 3 else 330.0, sys.argv[4:]))
