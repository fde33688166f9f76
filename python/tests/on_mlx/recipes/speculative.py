"""Generates tokens with a draft model and prints their ids: `speculative.py MODEL DRAFT whole|tensor`.

The model is split over all ranks. Each rank has the whole draft model, which is small, so all ranks draft the
same tokens without messages.
"""

from __future__ import annotations

import os
import sys

import mlx.core as mx
from mlx_lm.generate import stream_generate
from mlx_lm.utils import load, sharded_load

PROMPT = [5, 9, 77, 3, 12, 150]

path, draft_path, how = sys.argv[1:]
if how == "whole":
    model, tokenizer = load(path)
else:
    model, tokenizer = sharded_load(path, tensor_group=mx.distributed.init())
draft, _ = load(draft_path)
# No token ends the text.
tokenizer._eos_token_ids = {}
options = {"draft_model": draft, "num_draft_tokens": 3, "max_tokens": 24}
responses = list(stream_generate(model, tokenizer, PROMPT, **options))
drafted = sum(response.from_draft for response in responses)
os.write(1, f"@drafted {drafted} {len(responses)}\n".encode())
os.write(1, f"@ids {[response.token for response in responses]}\n".encode())
