# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama with a word-level tokenizer on disk."""

from __future__ import annotations

from pathlib import Path

VOCABULARY = 64
EOS, PAD = 5, 0


def save(path: Path, *, hidden: int = 32, layers: int = 2, tie: bool = False, seed: int = 0) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from verl_entropy.quickstart.build import word_level

    special = ["<pad>", "<unk>", "<bos>", "<unused>", "<im_start>", "<im_end>"]
    words = special + [f"w{i}" for i in range(VOCABULARY - len(special))]
    word_level(words, pad_token="<pad>", eos_token="<im_end>").save_pretrained(path)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tie,
        pad_token_id=PAD,
        bos_token_id=2,
        eos_token_id=EOS,
        initializer_range=0.3,  # far from uniform, so that a wrong mask or position changes the argmax
    )
    torch.manual_seed(seed)
    LlamaForCausalLM(config).save_pretrained(path)
    return path
