"""A tiny Llama with random weights, the same in all processes. Nothing is downloaded."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def new_llama() -> LlamaForCausalLM:
    """Returns a new model of two layers and 64 tokens."""
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        # Large weights, so that the most probable tokens are far from each other.
        initializer_range=0.5,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(5)
    return LlamaForCausalLM(config)
