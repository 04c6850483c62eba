# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
import tiny_llama as tiny


@pytest.fixture(scope="session")
def model_path(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def model(model_path):
    import torch
    from transformers import LlamaForCausalLM

    torch.set_num_threads(1)
    return LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval().requires_grad_(False)
