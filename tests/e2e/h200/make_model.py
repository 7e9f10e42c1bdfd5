"""A Qwen3.5 with the full-size head and few layers, whose text is a chain inside the kept ids: `make_model.py DIR [LAYERS]`.

Twenty layers or more: with fewer the H200 waits for vLLM's Python at every step (3.4 ms and more), whatever drafts.

As `../make_model.py`, written on the GPU: head 248,320 x 2,560, MTP linears of the Flash-Next width. `chain.pt` holds the
next id of each id, `mask.pt` the seed's mask of 64,026 ids. Vocabularies: `ids.txt` 64,128 ids, `missing.txt` those without
every fifteenth token of the text, `full.txt` all ids but the last: of all there is no draft vocabulary.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import Qwen3_5TextConfig

V, H, MLP, N_KEPT, N_SEED = 248_320, 2560, 9728, 64_128, 64_026
N_LAYERS = int(sys.argv[2]) if len(sys.argv) > 2 else 20
HEADS, KV_HEADS, HEAD_DIM, GDN_KEY_HEADS, GDN_VALUE_HEADS, GDN_DIM = 16, 4, 256, 16, 32, 128


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    tensors, next_id = target()
    tensors |= mtp(tensors)
    save_file(
        {name: tensor.to(torch.bfloat16).cpu().contiguous() for name, tensor in tensors.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )
    torch.save(next_id.cpu(), directory / "chain.pt")
    dropped = set(text(next_id.tolist(), 1024)[::15])
    write_ids(directory / "ids.txt", list(range(N_KEPT)))
    write_ids(directory / "missing.txt", [token_id for token_id in range(N_KEPT) if token_id not in dropped])
    write_ids(directory / "full.txt", list(range(V - 1)))
    torch.save(torch.arange(V) < N_SEED, directory / "mask.pt")
    config = Qwen3_5TextConfig(
        vocab_size=V, hidden_size=H, intermediate_size=MLP, num_hidden_layers=N_LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, linear_num_key_heads=GDN_KEY_HEADS, linear_num_value_heads=GDN_VALUE_HEADS,
        linear_key_head_dim=GDN_DIM, linear_value_head_dim=GDN_DIM, max_position_embeddings=8192, tie_word_embeddings=False,
    ).to_dict()  # fmt: skip
    config |= {"architectures": ["Qwen3_5ForCausalLM"], "mtp_num_hidden_layers": 1, "torch_dtype": "bfloat16"}
    (directory / "config.json").write_text(json.dumps(config, indent=1))


def text(next_id: list[int], n: int) -> list[int]:
    """The n tokens after the prompt that `engine.py` gives."""
    token, found = 10, []
    for _ in range(n):
        token = next_id[token]
        found.append(token)
    return found


def write_ids(path: Path, ids: list[int]) -> None:
    path.write_text("".join(f"{token_id}\n" for token_id in ids))


def random(*shape: int, std: float = 0.02) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * std


def target() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Names and shapes of transformers' Qwen3.5; projections into the residual stream and norms are zero."""
    from transformers import Qwen3_5ForCausalLM

    small = Qwen3_5TextConfig(
        vocab_size=64, hidden_size=H, intermediate_size=MLP, num_hidden_layers=N_LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, linear_num_key_heads=GDN_KEY_HEADS, linear_num_value_heads=GDN_VALUE_HEADS,
        linear_key_head_dim=GDN_DIM, linear_value_head_dim=GDN_DIM, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("cuda"):
        tensors = dict(Qwen3_5ForCausalLM(small).to(torch.bfloat16).state_dict())
    for name, tensor in tensors.items():
        if name.endswith(
            ("o_proj.weight", "down_proj.weight", "out_proj.weight", "layernorm.weight", "model.norm.weight")
        ):
            tensor.zero_()
    embedding = random(V, H, std=1.0)
    next_id = torch.arange(V, device="cuda")
    next_id[:N_SEED] = torch.randperm(N_SEED, device="cuda")
    head = torch.empty_like(embedding)
    head[next_id] = embedding
    return tensors | {"model.embed_tokens.weight": embedding, "lm_head.weight": head}, next_id


def mtp(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The block of the last (full-attention) layer, and a combiner that takes the embedding."""
    layer = f"model.layers.{N_LAYERS - 1}."
    block = {
        f"mtp.layers.0.{name.removeprefix(layer)}": tensor.clone()
        for name, tensor in tensors.items()
        if name.startswith(layer)
    }
    eye = torch.eye(H, device="cuda", dtype=torch.bfloat16)
    block["mtp.fc.weight"] = torch.cat([eye, torch.zeros_like(eye)], 1)
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        block[f"mtp.{name}.weight"] = torch.zeros(H, device="cuda", dtype=torch.bfloat16)
    return block


if __name__ == "__main__":
    main(Path(sys.argv[1]))
