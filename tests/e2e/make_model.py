"""Writes a tiny Qwen3.5 checkpoint whose text and whose drafts are known: `make_model.py DIR`.

The residual stream is the embedding of the last token (every projection back into it is zero), and row `next_id[t]` of
lm_head is the embedding of `t`: greedy text is the chain t -> next_id[t], with margins far above BF16 rounding. The
MTP block sees the same embedding, plus a small contribution of attention and MLP that cannot change an argmax, so that
its quantized linears do work. `chain.json` holds next_id.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

N_ROWS, HIDDEN = 2048, 256


def main(directory: Path) -> None:
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        vocab_size=N_ROWS, hidden_size=HIDDEN, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64,
        linear_num_key_heads=4, linear_num_value_heads=8, linear_key_head_dim=64, linear_value_head_dim=64,
        max_position_embeddings=2048, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    Qwen3_5ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    tensors = load_file(directory / "model.safetensors")
    next_id = chain(tensors)
    tensors |= mtp(tensors)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "chain.json").write_text(json.dumps(next_id))
    path = directory / "config.json"
    written = json.loads(path.read_text())
    written |= {"mtp_num_hidden_layers": 1, "architectures": ["Qwen3_5ForCausalLM"]}
    path.write_text(json.dumps(written, indent=1))


def chain(tensors: dict[str, torch.Tensor]) -> list[int]:
    """Makes the target a chain, in place; returns next_id."""
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(N_ROWS, HIDDEN, generator=generator)
    next_id = torch.randperm(N_ROWS, generator=generator)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "out_proj.weight")):
            tensor.zero_()
        if name.endswith(("layernorm.weight", "model.norm.weight")):
            tensor.zero_()
    head = torch.empty(N_ROWS, HIDDEN)
    head[next_id] = embedding
    tensors["model.embed_tokens.weight"] = embedding.to(torch.bfloat16)
    tensors["lm_head.weight"] = head.to(torch.bfloat16)
    return next_id.tolist()


def mtp(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The 15 `mtp.*` tensors: the block of the last layer, a combiner that takes the embedding and drops the rest."""
    layer = "model.layers.3."
    block = {
        f"mtp.layers.0.{name.removeprefix(layer)}": t.clone() for name, t in tensors.items() if name.startswith(layer)
    }
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        weight = block[f"mtp.layers.0.{name}.weight"]
        block[f"mtp.layers.0.{name}.weight"] = (torch.randn(weight.shape) * 0.02).to(torch.bfloat16)
    block["mtp.fc.weight"] = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], 1).to(torch.bfloat16)
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        block[f"mtp.{name}.weight"] = torch.zeros(HIDDEN, dtype=torch.bfloat16)
    return block


if __name__ == "__main__":
    main(Path(sys.argv[1]))
