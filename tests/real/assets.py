# SPDX-License-Identifier: Apache-2.0
"""A word-level tokenizer, a random Llama of a few thousand parameters and data for the real runs."""

from pathlib import Path

WORDS = (
    "goal : . task now can last step red green blue left right you are in want , 1 2 3 -> go "
    "<think> </think> <action> </action> user assistant system"
)


def make(folder: Path) -> Path:
    import pandas as pd
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from verl_entropy.quickstart.build import word_level

    words = ["<pad>", "<unk>", "<bos>", "<eos>", "<|im_start|>", "<|im_end|>", *WORDS.split()]
    tokenizer = word_level(words, pad_token="<pad>", eos_token="<|im_end|>", bos_token="<bos>")
    tokenizer.save_pretrained(folder / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=5,
    )
    LlamaForCausalLM(config).save_pretrained(folder / "model")
    for name, number in (("train", 32), ("val", 4)):
        rows = [
            {
                "data_source": "colours",
                "prompt": [{"role": "user", "content": "go"}],
                "ability": "agent",
                "reward_model": {"style": "rule", "ground_truth": ""},
                "extra_info": {"index": i, "seed": i},
            }
            for i in range(number)
        ]
        pd.DataFrame(rows).to_parquet(folder / f"{name}.parquet")
    return folder
