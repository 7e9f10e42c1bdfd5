"""One engine of the comparison, as `compare.py` starts it: `engine.py MODE WORK`.

Says on its standard output, a JSON line each: `ready`, then for each line that it reads there one answer: `round` (one
request), `finish` (what stays to be said: drafter memory, time of the draft head alone). Everything else goes to its log.
"""

from __future__ import annotations

import gc
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
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}

Events = list[tuple[Any, Any]]


def additional_config(mode: str, work: Path) -> dict[str, Any]:
    """draftfast's part: which drafter this mode has."""
    options: dict[str, Any] = {
        "seed": {"mask": str(work / "model/mask.pt"), "backend": "vllm"},
        # What vLLM 0.33 makes itself with `draft_lm_head_quantization`: every id, BF16 linears.
        "full-head": {"sidecar": str(work / "full"), "backend": "vllm", "keep_bf16": ["mtp.*"]},
        "sidecar": {"sidecar": str(work / "side")},
        "sidecar-vllm": {"sidecar": str(work / "side"), "backend": "vllm"},
        "sidecar-draftfast": {"sidecar": str(work / "side"), "backend": "draftfast"},
        "missing-ids": {"sidecar": str(work / "missing")},
    }
    return {"draftfast": options[mode]} if mode in options else {}


def start(mode: str, work: Path) -> Any:
    """The engine. Flags stand for binaries that did not travel; the KV cache has a fixed size, so that engines can start side by side."""
    import draftfast_vllm

    draftfast_vllm.register()
    from vllm import LLM

    options: dict[str, Any] = {}
    if mode != "none":
        options["speculative_config"] = {
            "method": "mtp",
            "num_speculative_tokens": K,
            "use_local_argmax_reduction": True,
        }
    return LLM(
        model=str(work / "model"), skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=4, max_num_batched_tokens=2048,
        dtype="bfloat16", enable_prefix_caching=False, attention_backend="TRITON_ATTN", gdn_prefill_backend="triton",
        disable_log_stats=False, gpu_memory_utilization=0.1, kv_cache_memory_bytes=4 << 30,
        additional_config=additional_config(mode, work), **options,
    )  # fmt: skip


def time_drafts() -> Events:
    """CUDA events around every draft of the speculator."""
    import torch
    from vllm.v1.worker.gpu.spec_decode.mtp.speculator import MTPSpeculator

    events: Events = []
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


def one_round(llm: Any, events: Events, chain: list[int]) -> dict[str, Any]:
    """One request of 1,024 tokens, greedy."""
    import torch
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=N_TOKENS, detokenize=False, ignore_eos=True)
    events.clear()
    begin = time.perf_counter()
    (output,) = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    torch.cuda.synchronize()
    # The first draft follows the prompt, not a draft.
    draft_us = [1000 * begin.elapsed_time(end) for begin, end in events[1:]]
    return {
        "tokens_per_s": N_TOKENS / seconds,
        "text_is_the_chain": list(output.outputs[0].token_ids) == chain,
        "n_steps": len(events),
        "draft_us": statistics.median(draft_us) if draft_us else None,
        "accepted": counters(llm),
    }


def counters(llm: Any) -> dict[str, Any]:
    """vLLM's own, since the engine started."""
    found = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode"):
            value = metric.values if hasattr(metric, "values") else metric.value
            found[metric.name.removeprefix("vllm:spec_decode_")] = value
    return found


def chain_of(work: Path) -> list[int]:
    """The text that the model must give."""
    import torch

    next_id = torch.load(work / "model/chain.pt", weights_only=True)
    token, chain = PROMPT[-1], []
    for _ in range(N_TOKENS):
        token = int(next_id[token])
        chain.append(token)
    return chain


def finish() -> dict[str, Any]:
    """Time of `get_top_tokens` alone for 1 and 8 states, in a CUDA graph, and what the drafter holds."""
    import torch

    from draftfast_vllm.attach import n_parameter_bytes

    found = [o for o in gc.get_objects() if type(o).__name__ == "Qwen3_5MTP" and hasattr(o, "get_top_tokens")]
    if not found:
        return {}
    drafter = found[0]
    answer: dict[str, Any] = {"drafter_bytes": n_parameter_bytes(drafter)}
    for m in (1, 8):
        x = torch.randn(m, 2560, dtype=torch.bfloat16, device="cuda")
        with torch.inference_mode():
            answer[f"head_us_m{m}"] = graph_us(lambda x=x: drafter.get_top_tokens(x))
    return answer


def graph_us(call: Any, n_calls: int = 20, n_replays: int = 15) -> float:
    """Median time of one call, from replays of a graph of twenty."""
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(n_calls):
            call()
    times = []
    for _ in range(n_replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end) / n_calls)
    return statistics.median(times)


def main(mode: str, work: Path) -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    begin = time.perf_counter()
    events, chain, llm = time_drafts(), chain_of(work), start(mode, work)
    print(json.dumps({"ready_s": time.perf_counter() - begin}), file=channel)
    for line in sys.stdin:
        try:
            answer = one_round(llm, events, chain) if line.strip() == "round" else finish()
        except Exception as error:
            answer = {"error": repr(error)[:300]}
        print(json.dumps(answer), file=channel)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
