"""One engine of the comparison, as `compare.py` starts it: `engine.py MODE WORK`.

Says on its standard output, a JSON line each: `ready`, then for each line that it reads there one answer: `round` (one
request), `finish` (what stays to be said: drafter memory, time of the draft head alone). Everything else goes to its log,
with PROFILE=1 also where a round of the engine spends its time, on the processor and on the GPU.

The engine core is a process of its own, as under `vllm serve`, unless the environment says otherwise; `probes.py` is what
measures there.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

N_TOKENS, PROMPT = 1024, [5, 6, 7, 8, 9, 10]
K, TP = int(os.environ.get("K", "7")), int(os.environ.get("TP", "1"))
os.environ |= {
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    # No NVLink multicast on this machine.
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "VLLM_USE_NCCL_SYMM_MEM": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NCCL_NVLS_ENABLE": "0",
}


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
    if TP > 1:
        options |= {"tensor_parallel_size": TP, "distributed_executor_backend": "mp", "disable_custom_all_reduce": True}
    return LLM(
        model=str(work / "model"), skip_tokenizer_init=True, max_model_len=2048, max_num_seqs=4, max_num_batched_tokens=2048,
        dtype="bfloat16", enable_prefix_caching=False, attention_backend="TRITON_ATTN", gdn_prefill_backend="triton",
        disable_log_stats=False, gpu_memory_utilization=0.1, kv_cache_memory_bytes=4 << 30,
        worker_extension_cls="probes.Probes", additional_config=additional_config(mode, work), **options,
    )  # fmt: skip


def one_round(llm: Any, chain: list[int]) -> dict[str, Any]:
    """One request of 1,024 tokens, greedy, after a short one that warms the caches of a process that was stopped."""
    from vllm import SamplingParams

    def generate(n_tokens: int) -> list[int]:
        sampling = SamplingParams(temperature=0, max_tokens=n_tokens, detokenize=False, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": PROMPT}], sampling, use_tqdm=False)
        return list(output.outputs[0].token_ids)

    generate(N_TOKENS // 8)
    llm.collective_rpc("forget_drafts")
    begin = time.perf_counter()
    text = generate(N_TOKENS)
    seconds = time.perf_counter() - begin
    draft_us, *_ = llm.collective_rpc("draft_times_us")
    return {
        "tokens_per_s": N_TOKENS / seconds,
        "text_is_the_chain": text == chain,
        "n_steps": len(draft_us),
        # The first draft follows the prompt, not a draft.
        "draft_us": statistics.median(draft_us[1:]) if draft_us else None,
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


def profiled_rounds(llm: Any, chain: list[int]) -> None:
    """A round under each profiler; neither counts."""
    for kind in ("processor", "gpu"):
        llm.collective_rpc("profile_on", args=(kind,))
        answer = one_round(llm, chain)
        print(
            f"profile of the {kind}: {answer['tokens_per_s']:.0f} tokens/s, {answer['n_steps']} steps", file=sys.stderr
        )
        llm.collective_rpc("profile_off", args=(kind,))


def finish(llm: Any, chain: list[int]) -> dict[str, Any]:
    """What the worker says of its draft head."""
    answer, *_ = llm.collective_rpc("draft_head", args=(TP == 1,))
    if os.environ.get("PROFILE"):
        profiled_rounds(llm, chain)
    return answer


def main(mode: str, work: Path) -> None:
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    begin = time.perf_counter()
    chain, llm = chain_of(work), start(mode, work)
    print(json.dumps({"ready_s": time.perf_counter() - begin}), file=channel)
    for line in sys.stdin:
        try:
            answer = one_round(llm, chain) if line.strip() == "round" else finish(llm, chain)
        except Exception as error:
            answer = {"error": repr(error)[:300]}
        print(json.dumps(answer), file=channel)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
