"""Tiny models with random weights, as directories that mlx-lm loads; nothing is downloaded."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from pathlib import Path

import mlx.core as mx
from mlx.utils import tree_flatten
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

#: Tokens: all bytes, and the end of a text.
TOKENS = 257

#: Shape of all models.
SHAPE = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 128,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-5,
    "vocab_size": TOKENS,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}

#: Architectures of mlx-lm by name. A draft is a llama without its upper layers.
ARCHITECTURES = {"llama": "llama", "draft": "llama", "qwen": "qwen2"}

#: Layers of a draft: so few that some of its tokens differ from those of the whole model, and others do not.
DRAFT_LAYERS = 2


def write_model(folder: Path, name: str, dtype: mx.Dtype = mx.float32) -> Path:
    """Writes a model with random weights of this type and its tokenizer, and returns the folder."""
    config = {"model_type": ARCHITECTURES[name], **SHAPE}
    folder.mkdir(parents=True)
    module = import_module(f"mlx_lm.models.{config['model_type']}")
    mx.random.seed(1)
    model = module.Model(module.ModelArgs.from_dict(config))
    weights = {key: (3 * value).astype(dtype) for key, value in tree_flatten(model.parameters())}
    if name == "draft":
        config["num_hidden_layers"] = DRAFT_LAYERS
        above = tuple(f"model.layers.{layer}." for layer in range(DRAFT_LAYERS, SHAPE["num_hidden_layers"]))
        weights = {key: value for key, value in weights.items() if not key.startswith(above)}
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate([*alphabet, "<eos>"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")
    fast.chat_template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    fast.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    write_model(Path(sys.argv[1]), sys.argv[2], getattr(mx, sys.argv[3]))
