#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes Motet's sample checkpoint: a tiny gpt-oss model that has really learnt something.

    python3 tools/make_sample.py --text FILE --out sample/gpt-oss-tiny

Needs torch, transformers and safetensors; neither the build nor the tests of Motet need it.

What happens, in order:
1. FILE (7-bit text) becomes byte tokens; every 20th block of 16 KiB is held out.
2. A GptOssForCausalLM (two layers, 16 experts, top 4) learns to predict the next byte.
3. A short fine-tuning runs the forward pass with MXFP4 experts and BF16 elsewhere
   (straight-through: the gradient is applied to the unrounded weights).
4. Weights are written as published gpt-oss files are: experts MXFP4, the rest BF16.
5. The stored weights are loaded again, decoded by code of their own, measured on held-out
   text, and run once to capture the input of each MoE layer. The expected outputs come from
   the formulas in float64 (moe_layer) and are compared with the transformers module.

The figures are printed at the end as JSON. The same seed, thread count and library versions
on one machine give the same files; other machines may differ in the last bits of training.
"""

import argparse
import contextlib
import json
import math
import pathlib
import time

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

VOCAB = 128  # a token is a 7-bit byte
HELD_OUT_BLOCK, HELD_OUT_EVERY = 16384, 20
ROUTER_MARGIN = 1e-3  # least gap between the logits of rank 4 and 5 in the captured tokens
# What transformers adds to every config and published gpt-oss files do not carry.
NOT_IN_CONFIG = {"_name_or_path", "chunk_size_feed_forward", "id2label", "is_encoder_decoder",
                 "label2id", "output_attentions", "output_hidden_states", "problem_type",
                 "return_dict"}
PROJECTIONS = ("gate_up_proj", "down_proj")


def make_config() -> GptOssConfig:
    """The published shape, shrunk; 288 is 9 blocks of 32: no multiple of 64."""
    return GptOssConfig(
        vocab_size=VOCAB, hidden_size=288, intermediate_size=288, num_hidden_layers=2,
        num_local_experts=16, num_experts_per_tok=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=131072,
        tie_word_embeddings=True, bos_token_id=0, eos_token_id=1, pad_token_id=2,
        architectures=["GptOssForCausalLM"])


# ---------------------------------------------------------------- text


def read_text(path: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Training tokens [N] and held-out tokens [blocks, HELD_OUT_BLOCK]."""
    data = np.fromfile(path, dtype=np.uint8)
    if data.max() >= VOCAB:
        raise SystemExit(f"{path} holds the byte {data.max()}; the text must be 7-bit")
    blocks = len(data) // HELD_OUT_BLOCK
    blocks = data[: blocks * HELD_OUT_BLOCK].reshape(blocks, HELD_OUT_BLOCK).astype(np.int64)
    held_out = np.arange(len(blocks)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return torch.from_numpy(blocks[~held_out].ravel()), torch.from_numpy(blocks[held_out])


def unigram_entropy(train: torch.Tensor, held_out: torch.Tensor) -> float:
    """Nats per byte of held-out text under the byte frequencies of the training text."""
    count = torch.bincount(train, minlength=VOCAB).double() + 1e-3
    return -(count / count.sum()).log()[held_out.flatten()].mean().item()


# ---------------------------------------------------------------- MXFP4


def round_e2m1(x: torch.Tensor) -> torch.Tensor:
    """Nearest of 0 .5 1 1.5 2 3 4 6 with the sign of x, ties to the even code, saturating."""
    a = x.abs().clamp(max=6.0)
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return torch.copysign((a / step).round() * step, x)


def choose_exponents(w: torch.Tensor) -> torch.Tensor:
    """w [..., 32] -> int [..., 1]: the power of two with the least squared error per block.

    With m = floor(log2(amax)), m-2 puts amax in [4, 8) (above 6 saturates), m-1 in [2, 4),
    m-3 saturates all but the bulk of the block."""
    top = w.abs().amax(-1, keepdim=True).clamp(min=2.0**-100).log2().floor()
    best, best_error = None, None
    for candidate in (top - 2, top - 1, top - 3):
        s = torch.exp2(candidate)
        error = (round_e2m1(w / s) * s - w).square().sum(-1, keepdim=True)
        if best is None:
            best, best_error = candidate, error
        else:
            best = torch.where(error < best_error, candidate, best)
            best_error = torch.minimum(error, best_error)
    return best


def blocks_of(p: torch.Tensor) -> torch.Tensor:
    """transformers keeps [E, K, N]; MXFP4 blocks run along K: [E, N, K/32, 32]."""
    e, k, n = p.shape
    return p.transpose(1, 2).reshape(e, n, k // 32, 32)


def round_mxfp4(p: torch.Tensor, exponents: torch.Tensor) -> torch.Tensor:
    s = torch.exp2(exponents)
    return (round_e2m1(blocks_of(p) / s) * s).flatten(2).transpose(1, 2).contiguous()


def pack_mxfp4(p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[E, K, N] -> blocks U8 [E, N, K/32, 16] (low nibble = even k), scales U8 [E, N, K/32]."""
    w = blocks_of(p)
    exponents = choose_exponents(w)
    q = round_e2m1(w / torch.exp2(exponents))
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    code = torch.searchsorted(magnitudes, q.abs().contiguous()) + 8 * (q < 0)
    scales = exponents.squeeze(-1) + 127
    assert scales.min() >= 0 and scales.max() <= 254  # 255 would be NaN
    packed = code[..., 0::2] | code[..., 1::2] << 4
    return packed.to(torch.uint8), scales.to(torch.uint8)


def unpack_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The decoder by the book, float64 [E, N, K]; shares nothing with the encoder."""
    e2m1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    values = np.stack([e2m1[blocks & 15], e2m1[blocks >> 4]], axis=-1)  # [E, N, K/32, 16, 2]
    values = values.reshape(*scales.shape, 32) * np.exp2(scales.astype(np.float64) - 127)[..., None]
    return values.reshape(*scales.shape[:2], -1)


# ---------------------------------------------------------------- training


def grouped_experts(self, hidden_states, router_indices=None, routing_weights=None):
    """GptOssExperts.forward with rows sorted by expert: same values, cheaper gradients."""
    tokens, top_k = router_indices.shape
    order = router_indices.flatten().argsort(stable=True)
    token = order // top_k
    counts = torch.bincount(router_indices.flatten(), minlength=self.num_experts).tolist()
    rows = hidden_states[token].split(counts)
    weights = zip(self.gate_up_proj.unbind(), self.gate_up_proj_bias.unbind(),
                  self.down_proj.unbind(), self.down_proj_bias.unbind())
    out = [torch.addmm(db, self._apply_gate(torch.addmm(gb, x, g)), d)
           for x, (g, gb, d, db) in zip(rows, weights)]
    out = torch.cat(out) * routing_weights.flatten()[order, None]
    return torch.zeros_like(hidden_states).index_add_(0, token, out)


class BalanceLoss:
    """A weak pull towards even loads, per layer: E * sum_e f_e P_e, 1 when balanced, with f_e
    the share of choices and P_e the mean probability. Without it, ten of layer 1's experts got
    under 2 % of the choices each after 220 steps."""

    def __init__(self, model):
        self.terms = []
        for layer in model.model.layers:
            layer.mlp.router.register_forward_hook(self.add)

    def add(self, router, arguments, router_output):
        logits, _, index = router_output
        chosen = torch.bincount(index.flatten(), minlength=logits.shape[1]) / index.numel()
        self.terms.append(len(chosen) * (chosen * logits.softmax(-1).mean(0)).sum())

    def take(self) -> torch.Tensor:
        total, self.terms = sum(self.terms), []
        return total


def learning_rate(step: int, args) -> float:
    """Warm-up, cosine to a tenth, then linear to zero while the weights are rounded."""
    if step >= args.steps:
        return args.lr * 0.1 * (1 - (step - args.steps) / max(1, args.qat_steps))
    warm = min(1.0, (step + 1) / 50)
    return args.lr * warm * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * step / args.steps)))


class RoundedWeights:
    """While entered, the model holds the weights a reader of the file would see."""

    def __init__(self, model):
        self.parameters = dict(model.named_parameters())
        self.exponents, self.master = {}, {}

    def refresh_scales(self):
        for name, p in self.parameters.items():
            if name.endswith(PROJECTIONS):
                self.exponents[name] = choose_exponents(blocks_of(p.data))

    def __enter__(self):
        for name, p in self.parameters.items():
            self.master[name] = p.data
            p.data = (round_mxfp4(p.data, self.exponents[name]) if name in self.exponents
                      else p.data.bfloat16().float())

    def __exit__(self, *unused):
        for name, p in self.parameters.items():
            p.data = self.master[name]


@torch.no_grad()
def held_out_loss(model, held_out: torch.Tensor, seq: int) -> float:
    """Nats per byte over all held-out windows of seq bytes, each starting without history."""
    windows = held_out.reshape(-1, seq)
    total = sum(model(input_ids=w, labels=w, use_cache=False).loss.item() * len(w)
                for w in windows.split(16))
    return total / len(windows)


def train_model(model, train: torch.Tensor, held_out: torch.Tensor, args) -> dict:
    generator = torch.Generator().manual_seed(args.seed)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=args.lr, betas=(0.9, 0.95), fused=True)
    rounded, balance = RoundedWeights(model), BalanceLoss(model)
    figures, start, mean = {}, time.time(), None
    for step in range(args.steps + args.qat_steps):
        if step == args.steps:
            figures["held_out_loss_unquantised"] = held_out_loss(model, held_out, args.seq)
            rounded.refresh_scales()
            with rounded:
                figures["held_out_loss_rounded_without_fine_tuning"] = held_out_loss(
                    model, held_out, args.seq)
            print(json.dumps(figures), flush=True)
        at = torch.randint(len(train) - args.seq, (args.batch,), generator=generator)
        ids = train[at[:, None] + torch.arange(args.seq)]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        balance.take()  # drops what an evaluation left
        rounding = step >= args.steps
        if rounding and (step - args.steps) % 10 == 0:
            rounded.refresh_scales()
        with rounded if rounding else contextlib.nullcontext():
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            (loss + args.balance * balance.take()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.item() if mean is None else 0.95 * mean + 0.05 * loss.item()
        if step % 50 == 0:
            print(f"step {step} loss {mean:.3f} nats, {time.time() - start:.0f} s", flush=True)
    figures["held_out_loss_before_final_rounding"] = held_out_loss(model, held_out, args.seq)
    return figures


# ---------------------------------------------------------------- files


def save(tensors: dict, path: pathlib.Path, **options) -> None:
    save_file({k: t.contiguous() for k, t in tensors.items()}, path, **options)
    path.chmod(0o644)


def write_checkpoint(model, config, out: pathlib.Path) -> None:
    tensors = {}
    for name, p in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the embedding
        if name.endswith(PROJECTIONS):
            tensors[name + "_blocks"], tensors[name + "_scales"] = pack_mxfp4(p.float())
        else:
            tensors[name] = p.bfloat16()
    save(tensors, out / "model.safetensors", metadata={"format": "pt"})
    fields = {k: v for k, v in sorted(config.to_dict().items()) if k not in NOT_IN_CONFIG}
    fields["dtype"] = "bfloat16"
    fields["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"]}
    (out / "config.json").write_text(json.dumps(fields, indent=2) + "\n")


def load_checkpoint(config, out: pathlib.Path) -> GptOssForCausalLM:
    """The stored weights, decoded exactly, in a float32 model of transformers."""
    state = {}
    stored = load_file(out / "model.safetensors")
    for name, t in stored.items():
        if name.endswith("_blocks"):
            scales = stored[name.replace("_blocks", "_scales")].numpy()
            w = torch.from_numpy(unpack_mxfp4(t.numpy(), scales)).float()
            state[name.removesuffix("_blocks")] = w.transpose(1, 2).contiguous()
        elif not name.endswith("_scales"):
            state[name] = t.float()
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model = GptOssForCausalLM(config)
    model.load_state_dict(state)
    model.set_experts_implementation("eager")  # the other ways know no float64
    return model.eval()


def moe_layer(stored: dict, layer: int, x: np.ndarray) -> dict:
    """One MoE layer from the stored tensors by the formulas, in float64. x [T, H].

        logits = x W_r^T + b_r;  top 4 (ties: lowest expert);  p = softmax over the 4
        [g, u] = x W_gu^T + b_gu, rows interleaved;  g' = min(g, 7);  u' = clamp(u, -7, 7)
        y = sum_k p_k (((u' + 1) g' sigmoid(1.702 g')) W_d^T + b_d)
    """
    p = f"model.layers.{layer}.mlp."
    f64 = lambda name: stored[p + name].double().numpy()
    weight = lambda name: unpack_mxfp4(stored[f"{p}experts.{name}_blocks"].numpy(),
                                       stored[f"{p}experts.{name}_scales"].numpy())
    gate_up, down = weight("gate_up_proj"), weight("down_proj")
    gate_up_bias, down_bias = f64("experts.gate_up_proj_bias"), f64("experts.down_proj_bias")
    logits = x @ f64("router.weight").T + f64("router.bias")
    ranked = np.argsort(-logits, axis=1, kind="stable")
    index = ranked[:, :4]
    top = np.take_along_axis(logits, ranked[:, :5], axis=1)
    exp = np.exp(top[:, :4] - top[:, :1])
    p_k = exp / exp.sum(axis=1, keepdims=True)
    y = np.zeros_like(x)
    for e in range(len(gate_up)):
        token, k = np.nonzero(index == e)
        gu = x[token] @ gate_up[e].T + gate_up_bias[e]
        g, u = np.minimum(gu[:, 0::2], 7.0), np.clip(gu[:, 1::2], -7.0, 7.0)
        h = (u + 1.0) * g / (1.0 + np.exp(-1.702 * g))
        y[token] += p_k[token, k, None] * (h @ down[e].T + down_bias[e])
    return {"output": y, "top_k_index": index, "top_k_weights": p_k,
            "margin": (top[:, 3] - top[:, 4]).min()}


@torch.no_grad()
def capture(model, ids: torch.Tensor) -> list[torch.Tensor]:
    """What each GptOssMLP.forward receives for the sequences ids [B, T]: BF16 [B, T, H]."""
    seen = []
    hooks = [layer.mlp.register_forward_pre_hook(lambda m, a: seen.append(a[0].bfloat16()))
             for layer in model.model.layers]
    model(input_ids=ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def write_hidden_states(model, held_out: torch.Tensor, out: pathlib.Path, args) -> dict:
    """Takes the first held-out window whose top-4 choice is clear in every token and layer."""
    stored = load_file(out / "model.safetensors")
    for window, ids in enumerate(held_out.reshape(-1, args.seq)[:, : args.tokens]):
        states = [s[0] for s in capture(model, ids[None])]
        results = [moe_layer(stored, i, s.double().numpy()) for i, s in enumerate(states)]
        margin = min(r["margin"] for r in results)
        if margin >= ROUTER_MARGIN:
            break
    else:
        raise SystemExit(f"no held-out window has a router margin of {ROUTER_MARGIN}")
    tensors = {"token_ids": ids.to(torch.int32), "hidden_states": states[0].clone()}
    expected = {}
    figures = {"window": window, "router_margin": float(margin)}
    for i, (s, r) in enumerate(zip(states, results)):
        tensors[f"layers.{i}.hidden_states"] = s
        expected[f"layers.{i}.output"] = torch.from_numpy(r["output"]).float()
        expected[f"layers.{i}.top_k_index"] = torch.from_numpy(r["top_k_index"]).to(torch.int32)
        expected[f"layers.{i}.top_k_weights"] = torch.from_numpy(r["top_k_weights"]).float()
        figures[f"layer_{i}_against_transformers"] = compare(model, i, s, r)
    save(tensors, out / "hidden_states.safetensors")
    save(expected, out / "expected.safetensors")
    return figures


@torch.no_grad()
def compare(model, layer: int, x: torch.Tensor, result: dict) -> dict:
    """Difference between moe_layer and the transformers block, run in float32 and float64."""
    figures = {}
    block = model.model.layers[layer].mlp
    for dtype in (torch.float64, torch.float32):
        block.to(dtype)
        _, weights, index = block.router(x.to(dtype))
        y = block(x.to(dtype)[None])[0][0].double().numpy()
        figures[str(dtype).removeprefix("torch.")] = {
            "output_rel_l2": float(np.linalg.norm(y - result["output"])
                                   / np.linalg.norm(result["output"])),
            "output_max_abs": float(np.abs(y - result["output"]).max()),
            "weights_max_abs": float(np.abs(weights.double().numpy()
                                            - result["top_k_weights"]).max()),
            "same_experts": bool((index.numpy() == result["top_k_index"]).all())}
    return figures


@torch.no_grad()
def expert_loads(model, held_out: torch.Tensor, seq: int) -> list[dict]:
    """Share of the 4 x tokens choices that each expert gets on all held-out text."""
    windows = held_out.reshape(-1, seq)
    counts = [torch.zeros(16, dtype=torch.int64) for _ in model.model.layers]

    def count(into):
        def hook(module, arguments, router_output):
            into.add_(torch.bincount(router_output[2].flatten(), minlength=16))
        return hook

    hooks = [layer.mlp.router.register_forward_hook(count(c))
             for layer, c in zip(model.model.layers, counts)]
    for w in windows.split(16):
        model(input_ids=w, use_cache=False)
    for hook in hooks:
        hook.remove()
    loads = []
    for c in counts:
        share = c.double() / c.sum()
        loads.append({"share": [round(s, 4) for s in share.tolist()],
                      "max_over_mean": share.max().item() * 16,
                      "min_over_mean": share.min().item() * 16})
    return loads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", required=True, help="7-bit text to learn, a few MB")
    parser.add_argument("--out", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2300, help="training steps")
    parser.add_argument("--qat-steps", type=int, default=300, help="steps with rounded weights")
    parser.add_argument("--batch", type=int, default=8, help="sequences per step")
    parser.add_argument("--seq", type=int, default=256, help="bytes per sequence")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--balance", type=float, default=0.001, help="weight of BalanceLoss")
    parser.add_argument("--tokens", type=int, default=208, help="hidden states to store")
    parser.add_argument("--trained", help="also write the unrounded weights to this file")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reuse", action="store_true",
                        help="train nothing: start at step 5 from the checkpoint in OUT")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    train, held_out = read_text(args.text)
    config = make_config()
    config._attn_implementation = "eager"
    figures = {"train_bytes": len(train), "held_out_bytes": held_out.numel(),
               "unigram_entropy_nats": unigram_entropy(train, held_out)}

    if not args.reuse:
        model = GptOssForCausalLM(config)
        original, GptOssExperts.forward = GptOssExperts.forward, grouped_experts
        figures |= train_model(model, train, held_out, args)
        GptOssExperts.forward = original
        print(json.dumps(figures, indent=1), flush=True)
        if args.trained:
            save({k: v for k, v in model.state_dict().items() if k != "lm_head.weight"},
                 pathlib.Path(args.trained))
        write_checkpoint(model, config, args.out)

    model = load_checkpoint(config, args.out)
    figures["held_out_loss_stored"] = held_out_loss(model, held_out, args.seq)
    figures["expert_loads"] = expert_loads(model, held_out, args.seq)
    figures["hidden_states"] = write_hidden_states(model, held_out, args.out, args)
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
