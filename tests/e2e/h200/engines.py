"""Engines as processes: what each is, how it is asked, stopped and bound to processor cores.

A `Setting` is written `MODE@layers=20,k=7,gpus=0+1,processes=2`; what is left out is 20 layers, 7 draft tokens, GPU 0, and an
engine core in a process of its own. Several GPUs share a model's tensors.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any

HERE = Path(__file__).parent
ROUND_SECONDS = 60
# The core, `LLM`, and the workers of two GPUs.
N_ALONE = 4


@dataclass(frozen=True)
class Setting:
    """What an engine is."""

    mode: str
    layers: int = 20
    k: int = 7
    gpus: tuple[int, ...] = (0,)
    processes: int = 2
    """2: the engine core has its own, as under `vllm serve`; 1: it shares that of `LLM`."""

    @classmethod
    def parse(cls, text: str) -> Setting:
        mode, _, rest = text.partition("@")
        given = dict(part.split("=") for part in rest.split(",") if part)
        gpus = tuple(map(int, given.get("gpus", "0").split("+")))
        return cls(mode, *(int(given.get(key, default)) for key, default in (("layers", 20), ("k", 7))), gpus, int(given.get("processes", 2)))  # fmt: skip

    @property
    def group(self) -> dict[str, int]:
        """Engines with the same one are compared."""
        return {"layers": self.layers, "k": self.k, "n_gpus": len(self.gpus), "processes": self.processes}

    @property
    def name(self) -> str:
        return "-".join(map(str, [self.mode, self.layers, self.k, "+".join(map(str, self.gpus)), self.processes]))


class Engine:
    """A process with its children, and what it has answered."""

    def __init__(self, setting: Setting, work: Path) -> None:
        self.setting, self.rounds, self.said = setting, [], Queue()
        self.answer: dict[str, Any] = {"mode": setting.mode} | setting.group
        environment = os.environ | {
            "VLLM_CACHE_ROOT": str(work / f"cache-{setting.name}"),
            "CUDA_VISIBLE_DEVICES": ",".join(map(str, setting.gpus)),
            "K": str(setting.k),
            "TP": str(len(setting.gpus)),
            "VLLM_ENABLE_V1_MULTIPROCESSING": str(setting.processes - 1),
        }
        with open(work / f"{setting.name}.log", "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py"), setting.mode, str(work / f"layers{setting.layers}")],
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

    def bind(self, bound: bool) -> None:
        """The main threads of the busiest processes each alone on the core where they are, all other threads on the other
        cores; or all threads on all cores."""
        every, alone = set(range(os.cpu_count() or 1)), {}
        processes = group_members(self.process.pid)
        free = cores()
        for process in processes[:N_ALONE] if bound else ():
            core = min(free, key=lambda core: last_processor(process) not in core)
            free.remove(core)
            alone[process] = core
        for process in processes:
            for thread in threads(process):
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(thread, alone.get(thread, every.difference(*alone.values()) or every))

    @property
    def dead(self) -> bool:
        return "died" in self.answer


def cores() -> list[frozenset[int]]:
    """The logical processors of each core, as far as the machine tells."""
    found = set()
    for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list"):
        spans = (part.partition("-") for part in path.read_text().strip().split(","))
        found.add(frozenset(n for first, _, last in spans for n in range(int(first), int(last or first) + 1)))
    n = os.cpu_count() or 1
    if len(found) == n or not found:
        # A virtual machine may call every thread of the host a core.
        return [frozenset({i, min(i + 1, n - 1)}) for i in range(0, n, 2)]
    return sorted(found, key=min)


def last_processor(process: int) -> int:
    """Where its main thread ran last."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[36])
    return 0


def group_members(group: int) -> list[int]:
    """Processes of a group, those that have used the processor most first."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group:
                found.append((int(fields[11]) + int(fields[12]), int(path.parent.name)))
    return [process for _, process in sorted(found, reverse=True)]


def threads(process: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]
    return []
