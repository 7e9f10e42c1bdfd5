"""One engine, one greedy run, one JSON line: `generate.py MODEL '{"k": 3, ...}'`. `run.py` starts it a case at a time.

Keys: `k` draft tokens (0: no speculation), `local_argmax`, `probabilistic`, `tp`, `runner` (1 or 2), `compile`,
`additional` (additional_config), `install` (options of `draftfast_vllm.install`), `probe` (compare the drafter's weights with
the sidecar), `lora`, `subprocess` (the engine in a process of its own).
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

MAX_TOKENS = 32
PROMPTS = ([5, 6, 7, 8, 9, 10], [100, 200, 300])


def main(model: str, case: dict[str, Any]) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if case.get("subprocess") else "0"
    if case.get("tp", 1) > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in range(case["tp"]))
    if case.get("runner") == 2:
        import runner_v2

        runner_v2.enable()
    if "install" in case:
        import draftfast_vllm

        draftfast_vllm.install(**case["install"])
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, **engine_options(case))
    sampling = SamplingParams(temperature=case.get("temperature", 0), max_tokens=MAX_TOKENS, detokenize=False, ignore_eos=True, seed=0)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    result: dict[str, Any] = {"tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode"):
            result[metric.name.removeprefix("vllm:spec_decode_")] = getattr(metric, "values", None) or getattr(metric, "value", None)
    if case.get("probe"):
        import probe

        result["probe"] = probe.compare(llm, case["probe"])
    print("RESULT " + json.dumps(result), flush=True)


def engine_options(case: dict[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = dict(
        skip_tokenizer_init=True, max_model_len=256, max_num_seqs=4, max_num_batched_tokens=512, dtype="bfloat16",
        enforce_eager=not case.get("compile", False), enable_prefix_caching=False, disable_log_stats=False,
        tensor_parallel_size=case.get("tp", 1), additional_config=case.get("additional", {}),
    )  # fmt: skip
    if case.get("tp", 1) > 1:
        options["distributed_executor_backend"] = "mp"
    if case.get("k"):
        options["speculative_config"] = {
            "method": case.get("method", "mtp"),
            "num_speculative_tokens": case["k"],
            "use_local_argmax_reduction": case.get("local_argmax", False),
            "draft_sample_method": "probabilistic" if case.get("probabilistic") else "greedy",
        }
    if case.get("lora"):
        options |= {"enable_lora": True, "max_lora_rank": 8}
    return options


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
