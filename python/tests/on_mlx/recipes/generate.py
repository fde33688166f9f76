"""Generates tokens and prints their ids: `generate.py MODEL whole|tensor|pipeline`."""

from __future__ import annotations

import os
import sys

import mlx.core as mx
from mlx_lm.generate import stream_generate
from mlx_lm.utils import load, sharded_load

PROMPT = [5, 9, 77, 3, 12, 150]

path, how = sys.argv[1:]
world = mx.distributed.init()
if how == "whole":
    model, tokenizer = load(path)
elif how == "tensor":
    model, tokenizer = sharded_load(path, tensor_group=world)
else:
    model, tokenizer = sharded_load(path, pipeline_group=world)
# No token ends the text.
tokenizer._eos_token_ids = {}
tokens = [response.token for response in stream_generate(model, tokenizer, PROMPT, max_tokens=24)]
os.write(1, f"@ids {tokens}\n".encode())
