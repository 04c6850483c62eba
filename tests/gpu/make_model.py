# SPDX-License-Identifier: Apache-2.0
"""make_model.py MODEL OUT [KEY=NUMBER...]: the layers of Qwen2.5-1.5B with random weights, and MODEL's tokenizer and vocabulary.

For times: an update or a decoding step costs what it costs with trained weights. KEY is one of ``SIZES``, to build a smaller one.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

SIZES = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
}


def main(model: str, out: str, *sizes: str) -> None:
    chosen = SIZES | {key: int(number) for key, number in (size.split("=") for size in sizes)}
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        **chosen,
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        built = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    built.save_pretrained(Path(out))
    tokenizer.save_pretrained(Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
