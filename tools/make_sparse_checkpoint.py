#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint of full size whose weights are holes: config.json and a sparse model.safetensors that take no disk space.

For planning, inspecting and byte counts on real shapes. All weights read as zero.

usage: make_sparse_checkpoint.py NAME DIRECTORY [--layers N]      NAME: gpt-oss-20b, gpt-oss-120b
"""
import argparse
import json
import math
import pathlib
import struct

BITS = {"U8": 8, "BF16": 16}


def gpt_oss(experts, layers):
    hidden = intermediate = 2880
    config = {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": hidden, "intermediate_size": intermediate,
              "num_local_experts": experts, "num_experts_per_tok": 4, "num_hidden_layers": layers, "hidden_act": "silu", "swiglu_limit": 7.0,
              "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
                  "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}}
    tensors = {}
    for layer in range(layers):
        mlp = f"model.layers.{layer}.mlp."
        for name, rows, columns in (("gate_up_proj", 2 * intermediate, hidden), ("down_proj", hidden, intermediate)):
            tensors[f"{mlp}experts.{name}_blocks"] = ("U8", [experts, rows, columns // 32, 16])
            tensors[f"{mlp}experts.{name}_scales"] = ("U8", [experts, rows, columns // 32])
            tensors[f"{mlp}experts.{name}_bias"] = ("BF16", [experts, rows])
        tensors[f"{mlp}router.weight"] = ("BF16", [experts, hidden])
        tensors[f"{mlp}router.bias"] = ("BF16", [experts])
    return config, tensors


MODELS = {"gpt-oss-20b": (lambda layers: gpt_oss(32, layers), 24), "gpt-oss-120b": (lambda layers: gpt_oss(128, layers), 36)}


def write(directory, config, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        size = math.prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)
    return 8 + len(text) + at


def main():
    parser = argparse.ArgumentParser(description="Write a checkpoint of full size whose weights are holes.")
    parser.add_argument("name", choices=sorted(MODELS))
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--layers", type=int, help="write and declare only the first N layers")
    wishes = parser.parse_args()
    make, layers = MODELS[wishes.name]
    size = write(wishes.directory, *make(wishes.layers or layers))
    print(f"{wishes.directory}: {size} bytes, sparse")


if __name__ == "__main__":
    main()
