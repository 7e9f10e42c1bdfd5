"""One engine on one GPU: `bench.py MODEL MODE [SIDECAR]`; prints one JSON object."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

N_TOKENS, K, PROMPT = 1024, int(os.environ.get("K", "7")), [5, 6, 7, 8, 9, 10]
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "HF_HUB_OFFLINE": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
}


def settings(model: Path, mode: str, sidecar: str | None) -> dict[str, Any]:
    """draftfast's part of additional_config."""
    if mode == "seed":
        return {"draftfast": {"mask": str(model / "mask.pt"), "backend": "vllm"}}
    if mode.startswith("sidecar"):
        return {"draftfast": {"sidecar": sidecar, "backend": mode.partition("-")[2] or "auto"}}
    return {}


def time_drafts() -> list[tuple[Any, Any]]:
    """CUDA events around every draft of the speculator."""
    import torch
    from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator

    events: list[tuple[Any, Any]] = []
    original = MTPSpeculator.propose

    def propose(self: Any, *args: Any, **kwargs: Any) -> Any:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        result = original(self, *args, **kwargs)
        end.record()
        events.append((begin, end))
        return result

    MTPSpeculator.propose = propose
    return events


def main(model: Path, mode: str, sidecar: str | None) -> None:
    import draftfast_vllm

    draftfast_vllm.register()
    import torch
    from vllm import LLM, SamplingParams

    options: dict[str, Any] = {}
    if mode != "none":
        options["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": K,
            "use_local_argmax_reduction": True,
        }
    events = time_drafts()
    llm = LLM(
        model=str(model), skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=4, dtype="bfloat16", enable_prefix_caching=False,
        attention_backend="TRITON_ATTN", gdn_prefill_backend="triton", disable_log_stats=False, gpu_memory_utilization=0.6,
        additional_config=settings(model, mode, sidecar), **options,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=N_TOKENS, detokenize=False, ignore_eos=True)
    seconds = []
    for _ in range(4):
        events.clear()
        begin = time.perf_counter()
        (output,) = llm.generate([{"prompt_token_ids": PROMPT}], sampling)
        seconds.append(time.perf_counter() - begin)
    torch.cuda.synchronize()
    next_id = torch.load(model / "chain.pt", weights_only=True)
    token, chain = PROMPT[-1], []
    for _ in range(N_TOKENS):
        token = int(next_id[token])
        chain.append(token)
    counters = {
        m.name: getattr(m, "values", getattr(m, "value", None)) for m in llm.get_metrics() if "spec_decode" in m.name
    }
    draft_us = [1000 * a.elapsed_time(b) for a, b in events[2:]]
    print(json.dumps({
        "mode": mode, "k": K, "tokens_per_s": [round(N_TOKENS / s, 1) for s in seconds], "text_is_the_chain": list(output.outputs[0].token_ids) == chain,
        "draft_us_median": round(statistics.median(draft_us), 1) if draft_us else None, "counters": counters, "device": torch.cuda.get_device_name(),
    }))  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else None)
