"""Engines one after the other in one process, a JSON line each: `generate.py MODEL '[{"k": 3, ...}, ...]'`.

Keys of a case: `k` draft tokens (0: no speculation), `local_argmax`, `probabilistic`, `tp`, `runner` (1 or 2),
`compile`, `additional` (additional_config), `install` (options of `draftfast_vllm.install`), `probe` (compare the
drafter's weights with this sidecar; "off": only look), `lora`, `draft_model`, `subprocess` (the engine in a process of its own),
`collected` (check what was written there), `environment`, `vllm_version` (what vLLM says it is), `emulate`
(`emulated.py` stands for our kernels). `runner`, `subprocess`, `compile` and `emulate` hold for a whole process: the first case's count.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback
from typing import Any
from unittest import mock

MAX_TOKENS = 32
PROMPTS = ([5, 6, 7, 8, 9, 10], [100, 200, 300])


def main(model: str, cases: list[dict[str, Any]]) -> None:
    """Prints `RESULT {...}` for each case: what was generated, or why the engine refused."""
    prepare_process(cases[0])
    import vllm

    from draftfast_vllm import config

    for case in cases:
        config._installed = None
        with (
            mock.patch.dict(os.environ, case.get("environment", {})),
            mock.patch.object(vllm, "__version__", case.get("vllm_version", vllm.__version__)),
        ):
            try:
                result = generate(case.get("model", model), case)
            except Exception:
                result = {"refused": traceback.format_exc()}
        print("RESULT " + json.dumps(result), flush=True)
        gc.collect()
        vllm.distributed.cleanup_dist_env_and_memory()


def prepare_process(case: dict[str, Any]) -> None:
    """What must be set before vLLM is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if case.get("subprocess") else "0"
    if case.get("tp", 1) > 1:
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in range(case["tp"]))
    if case.get("runner") == 2:
        import runner_v2

        runner_v2.enable()
    if case.get("emulate"):
        import emulated

        emulated.enable()


def generate(model: str, case: dict[str, Any]) -> dict[str, Any]:
    """One engine, one greedy run."""
    if "install" in case:
        import draftfast_vllm

        draftfast_vllm.install(**case["install"])
    from vllm import LLM, SamplingParams

    llm = LLM(model=model, **engine_options(case))
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, detokenize=False, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling)
    result: dict[str, Any] = {"tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    result |= spec_decode_counters(llm)
    if case.get("probe"):
        import probe

        result["probe"] = probe.compare(llm, case["probe"])
    if case.get("collected"):
        import probe

        result["probe"] = probe.collected(case["collected"], model, result["tokens"])
    return result


def spec_decode_counters(llm: Any) -> dict[str, Any]:
    """vLLM's own counters of this engine."""
    counters = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode"):
            name = metric.name.removeprefix("vllm:spec_decode_")
            counters[name] = metric.values if hasattr(metric, "values") else metric.value
    return counters


def engine_options(case: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `LLM`."""
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
        if "draft_model" in case:
            options["speculative_config"]["model"] = case["draft_model"]
    if case.get("lora"):
        options |= {"enable_lora": True, "max_lora_rank": 8}
    return options


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
