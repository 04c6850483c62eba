# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama, its word-level tokenizer and the task data, built from a seed: the same files every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from tokenizers.normalizers import Lowercase
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from verl_entropy import envs
from verl_entropy.agent.settings import AgentSettings
from verl_entropy.envs.household import household_vocabulary
from verl_entropy.quickstart import recipe

PAD, UNKNOWN, START, END = "<pad>", "<unk>", "<|im_start|>", "<|im_end|>"
ROLES = ("system", "user", "assistant")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    f"{START} {{{{ message['role'] }}}} {{{{ message['content'] }}}} {END} "
    "{% endfor %}"
    f"{{% if add_generation_prompt %}}{START} assistant {{% endif %}}"
)
TRAIN_ROWS = 256  # more than STEPS * PROMPTS_PER_STEP, so that no task comes twice
HELD_OUT_ROWS = 64  # per held-out split; one standard error of a success rate of one half is 6 points
SEED_BASE = {"train": 0, "seen": 10_000_000, "unseen": 20_000_000}
WARM_START_SEEDS = 30_000_000  # episodes of the warm start come from seeds that the run never uses


def vocabulary() -> list[str]:
    """Every token: control tokens, tags, then every word of environment, prompt, thought and role, sorted."""
    s = recipe.settings()
    tags = [f"<{slash}{tag}>" for tag in (s.think_tag, s.action_tag) for slash in ("", "/")]
    prompt = recipe.prompt_builder().messages("look", "look", [("look", "look")], ["look"])[-1]["content"]
    template = "".join(c if c.isalnum() else " " for c in prompt.lower()).split()
    thoughts = {"find", "take", "move", "use", "drop"}
    # The names of the tags as plain words: a prompt that quotes a malformed response spells them so.
    words = {*household_vocabulary(), *template, *thoughts, *ROLES, s.noop_action, s.think_tag, s.action_tag}
    return [PAD, UNKNOWN, START, END, *tags, *sorted(words)]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """One token a word; case and punctuation are dropped, each tag is a single (not special) token."""
    tokens = vocabulary()
    backend = Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=UNKNOWN))
    backend.normalizer = Lowercase()
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\W+"), behavior="removed")
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in (PAD, UNKNOWN, START, END)])
    backend.add_tokens([AddedToken(tag, normalized=False) for tag in tokens[4:8]])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=UNKNOWN,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        model_max_length=recipe.PROMPT_LENGTH + recipe.RESPONSE_LENGTH,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> LlamaForCausalLM:
    """A Llama of about 0.2 M parameters, randomly initialised from the seed."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=recipe.HIDDEN,
        intermediate_size=recipe.FEED_FORWARD,
        num_hidden_layers=recipe.LAYERS,
        num_attention_heads=recipe.HEADS,
        num_key_value_heads=recipe.HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config).float()


def task_rows(split: str, count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows in the form verl's RLHFDataset reads; families take turns, so that every batch holds a mix.

    `extra_info.seed` and `extra_info.options` choose the episode; `prompt` is its first turn.
    """
    s: AgentSettings = recipe.settings()
    builder, env = recipe.prompt_builder(), envs.make(s.name, **s.kwargs)
    rows: list[dict[str, Any]] = []
    episode_seed = SEED_BASE[split] + seed * 1_000_000
    while len(rows) < count:
        observation, info = env.reset(seed=episode_seed, options={"split": split})
        if info["task_type"] == recipe.FAMILIES[len(rows) % len(recipe.FAMILIES)]:
            rows.append(
                {
                    "data_source": f"household_{split}",
                    "prompt": builder.messages(info["task"], observation, [], info["admissible_actions"], 1),
                    "ability": "agent",
                    "reward_model": {"style": "rule", "ground_truth": ""},
                    "extra_info": {
                        "index": len(rows),
                        "seed": episode_seed,
                        "split": split,
                        "task_type": info["task_type"],
                        "options": {"split": split},
                    },
                    "agent_name": "stepwise_env",
                }
            )
        episode_seed += 1
    return rows


def build_assets(folder: str | Path, seed: int = 0, train: int = TRAIN_ROWS, held_out: int = HELD_OUT_ROWS) -> dict[str, Path]:
    """Write model, tokenizer and {train,seen,unseen}.parquet; returns the path of each.

    The model is not trained yet: see `verl_entropy.quickstart.warmstart.warm_start`.
    """
    folder = Path(folder)
    paths = {"model": folder / "model", **{split: folder / f"{split}.parquet" for split in SEED_BASE}}
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(paths["model"])
    build_model(tokenizer, seed).save_pretrained(paths["model"])
    for split in SEED_BASE:
        rows = task_rows(split, train if split == "train" else held_out, seed)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), paths[split])
    return paths
