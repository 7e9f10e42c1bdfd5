"""What `engine.py` asks of vLLM's worker, in the worker's process: vLLM mixes `Probes` into its worker class.

On import every draft of the speculator gets a CUDA event before and after it.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
from typing import Any

import torch

from draftfast_vllm.attach import n_parameter_bytes
from draftfast_vllm.backend import graph_us

HIDDEN_SIZE = 2560
_events: list[tuple[Any, Any]] = []
_profiles: dict[str, Any] = {}


class Probes:
    """Methods for `LLM.collective_rpc`."""

    model_runner: Any

    def forget_drafts(self) -> None:
        """Those until now are not of interest."""
        _events.clear()

    def draft_times_us(self) -> list[float]:
        """Of the drafts since `forget_drafts`."""
        if _events:
            torch.cuda.synchronize()
        return [1000 * begin.elapsed_time(end) for begin, end in _events]

    def draft_head(self, timed: bool) -> dict[str, float]:
        """What the drafter holds, and the time of `get_top_tokens` alone for 1 and 8 states, in a CUDA graph."""
        speculator = self.model_runner.speculator
        if speculator is None:
            return {}
        from vllm.v1.worker.workspace import unlock_workspace

        unlock_workspace()  # Marlin wants its locks once a stream, and the graphs below have one of their own
        drafter = speculator.model
        answer: dict[str, float] = {"drafter_bytes": n_parameter_bytes(drafter)}
        for m in (1, 8) if timed else ():
            x = torch.randn(m, HIDDEN_SIZE, dtype=torch.bfloat16, device="cuda")
            with torch.inference_mode():
                answer[f"head_us_m{m}"] = graph_us(lambda x=x: drafter.get_top_tokens(x), n_replays=15)
        return answer

    def profile_on(self, kind: str) -> None:
        """From here on, in this thread: `processor` (cProfile) or `gpu` (kernels)."""
        if kind == "processor":
            _profiles[kind] = cProfile.Profile()
            _profiles[kind].enable()
        else:
            _profiles[kind] = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
            _profiles[kind].start()

    def profile_off(self, kind: str) -> None:
        """Prints what was seen."""
        seen = _profiles.pop(kind)
        if kind == "processor":
            seen.disable()
            pstats.Stats(seen, stream=sys.stderr).sort_stats("tottime").print_stats(45)
        else:
            seen.stop()
            table = seen.key_averages().table(sort_by="self_device_time_total", row_limit=40, max_name_column_width=60)
            print(table, file=sys.stderr)


def time_drafts() -> None:
    """Events around `MTPSpeculator.propose`."""
    from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator

    original = MTPSpeculator.propose

    def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        result = original(self, *args, **kwargs)
        end.record()
        _events.append((begin, end))
        return result

    MTPSpeculator.propose = propose


time_drafts()
