"""Tensor-parallel generation by Transformers, on a tiny Llama with random weights.

    torchrun --nproc-per-node 2 transformers_generate.py FOLDER
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
import transformers

import tiny
from llama import new_llama

transformers.logging.set_verbosity_error()
# Transformers makes a group of gloo for CPUs unless it finds one.
dist.init_process_group("tbccl")
prompt = torch.tensor([[1, 17, 42, 5]])
alone = new_llama().eval()
expected = alone.generate(prompt, max_new_tokens=16, do_sample=False)
if tiny.rank == 0:
    alone.save_pretrained(sys.argv[1])
dist.barrier()
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], tp_plan="auto").eval()
weight = model.model.layers[0].self_attn.q_proj.weight
local = weight.to_local() if hasattr(weight, "to_local") else weight
assert local.numel() == alone.model.layers[0].self_attn.q_proj.weight.numel() // tiny.size
found = model.generate(prompt, max_new_tokens=16, do_sample=False)
assert found.tolist() == expected.tolist(), (found, expected)
assert dist.get_backend() == "tbccl"
tiny.tell(f"generated {tiny.rank} {found.size(1)}")
dist.destroy_process_group()
