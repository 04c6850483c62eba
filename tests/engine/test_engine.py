# SPDX-License-Identifier: Apache-2.0
"""The real FSDP engine on a CPU: neutral settings change nothing, splits do not matter, the head trains, saves and resumes."""

import pytest
import torch
from engine_rank import PROMPT, RESPONSE

STRATEGIES = ("fsdp", "fsdp2")


def equal(a, b):
    assert a.keys() == b.keys()
    return all(torch.equal(a[k], b[k]) for k in a)


def close(a, b, **tolerance):
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k], **tolerance)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_neutral_settings_are_bit_equal_to_stock_verl(one, strategy):
    """No head (alpha 0), EPO with lambda 0 and our log-prob pass: the same bits as verl's engine without any of it."""
    stock, neutral = one[f"{strategy}-stock"], one[f"{strategy}-neutral"]
    for name in ("log_probs", "entropy"):
        assert all(torch.equal(a, b) for a, b in zip(stock["inference"][name], neutral["inference"][name], strict=True))
    assert stock["first"]["loss"] == neutral["first"]["loss"]
    assert stock["first"]["grad_norm"] == neutral["first"]["grad_norm"]
    assert equal(stock["first"]["weights"], neutral["first"]["weights"])
    assert stock["first"]["metrics"] == {} and neutral["first"]["metrics"]["verl_entropy/active"] == 1.0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_regulariser_and_head_act_on_the_backbone(one, strategy):
    assert not equal(one[f"{strategy}-neutral"]["first"]["weights"], one[f"{strategy}-full"]["first"]["weights"])
    assert one[f"{strategy}-full"]["first"]["metrics"]["verl_entropy/epo/outside"] > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_micro_batches_do_not_matter(one, strategy):
    whole, split = one[f"{strategy}-full"]["first"], one[f"{strategy}-full-budget=24"]["first"]
    assert whole["micro_batches"] == 1 and split["micro_batches"] > 3
    _same_update(whole, split)


def test_order_of_rows_and_packing_do_not_matter(one):
    _same_update(one["fsdp2-full"]["first"], one["fsdp2-full-order=[9,3,7,1,5,0,8,2,6,4]"]["first"])
    _same_update(one["fsdp2-full"]["first"], one["fsdp2-full-packed=1"]["first"])


def test_our_log_prob_pass_equals_verls(one):
    _same_update(one["fsdp2-full"]["first"], one["fsdp2-full-logp=verl"]["first"])


PACKED = (
    "fsdp-full-packed=1",
    "fsdp2-full-packed=1",
    "fsdp2-full-packed=1-budget=24-checkpointing=1",
    "fsdp2-full-packed=1-pad=64",
)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("reference", ["full", "full-packed=1-kept=0"])
def test_packed_rows_have_logits_where_a_response_token_is_predicted(one, name, reference):
    """Log-probs, entropies and update are those of padded rows and of all logits, and lm_head sees response tokens only."""
    asked, other = one[name], one[f"{name.split('-')[0]}-{reference}"]
    for key in ("log_probs", "entropy"):
        for a, b in zip(asked["inference"][key], other["inference"][key], strict=True):
            torch.testing.assert_close(a, b, atol=2e-5, rtol=0)
    _same_update(other["first"], asked["first"])
    _, *update = asked["logit_rows"]
    assert asked["logit_rows"][0] == sum(update) == sum(RESPONSE) and len(update) == asked["first"]["micro_batches"]
    assert all(rows >= sum(PROMPT) + sum(RESPONSE) for rows in other["logit_rows"])


def test_verls_own_pass_has_logits_of_every_token(one):
    rows = one["fsdp2-full-packed=1-logp=verl"]["logit_rows"]
    assert rows == [sum(PROMPT) + sum(RESPONSE)] * 2
    _same_update(one["fsdp2-full-packed=1-logp=verl"]["first"], one["fsdp2-full-packed=1"]["first"])


@pytest.mark.parametrize("name", ["fsdp-full", "fsdp2-full", "fsdp2-full-budget=24", *PACKED[:2]])
def test_ranks_do_not_matter(one, two, name):
    _same_update(one[name]["first"], two[0][name]["first"])
    assert equal(two[0][name]["first"]["weights"], two[1][name]["first"]["weights"])


def test_row_means_under_splits_and_ranks(one, two):
    whole = one["fsdp2-full-agg=seq_mean_token_mean"]["first"]
    _same_update(whole, one["fsdp2-full-agg=seq_mean_token_mean-budget=24"]["first"])
    _same_update(whole, two[0]["fsdp2-full-agg=seq_mean_token_mean-budget=24"]["first"])


def _same_update(a, b):
    """Loss, gradient norm, every metric and the updated weights agree.

    The first Adam step moves a weight by lr * g / (|g| + eps), so it magnifies rounding where a gradient is about eps.
    """
    assert a["loss"] == pytest.approx(b["loss"], abs=2e-6)
    assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=2e-5)
    assert a["metrics"].keys() == b["metrics"].keys()
    for key, value in a["metrics"].items():
        assert value == pytest.approx(b["metrics"][key], abs=2e-6), key
    close(a["weights"], b["weights"], atol=2e-4, rtol=0)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_rollout_gets_the_models_weights_only(one, strategy):
    assert one[f"{strategy}-stock"]["first"]["weights"].keys() == one[f"{strategy}-full"]["first"]["weights"].keys()
    assert one[f"{strategy}-full"]["first"]["head"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_reference_has_no_head_and_our_log_probs(one, strategy):
    reference = one[f"{strategy}-reference"]
    assert reference["has_head"] is False
    assert "seal_logits" not in reference["keys"]
    stock = one[f"{strategy}-stock"]["inference"]["log_probs"]
    assert all(torch.allclose(a, b, atol=0.05) for a, b in zip(stock, reference["log_probs"], strict=True))  # bf16 weights


@pytest.fixture(params=("one", "two"))
def ranks(request):
    results = request.getfixturevalue(request.param)
    return results if request.param == "two" else [results]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_head_is_trained_saved_and_resumed_exactly(ranks, strategy):
    for rank in ranks:
        saved, resumed = rank[f"{strategy}-save"], rank[f"{strategy}-resume"]
        assert not equal(saved["first"]["head"], saved["second"]["head"])
        assert saved["second"]["loss"] == resumed["second"]["loss"]
        assert equal(saved["second"]["weights"], resumed["second"]["weights"])
        assert equal(saved["second"]["head"], resumed["second"]["head"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strip_head_gives_a_checkpoint_for_stock_verl(ranks, strategy):
    """One and two ranks: model and optimiser of the stripped checkpoint load without any setting of ours, and training goes on."""
    for rank in ranks:
        assert equal(rank[f"{strategy}-strip"]["loaded"], rank[f"{strategy}-save"]["first"]["weights"])
        assert not equal(rank[f"{strategy}-strip"]["loaded"], rank[f"{strategy}-strip"]["second"]["weights"])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_exported_model_has_no_head(one, one_folder, strategy):
    """``checkpoint.save_contents=[..., hf_model]``: transformers loads the export without a word about tensors it does not know."""
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    folder = one_folder / f"checkpoint-{strategy}" / "huggingface"
    names = [name for file in folder.glob("*.safetensors") for name in safe_open(file, framework="pt").keys()]
    assert names and not [name for name in names if "seal_head" in name]
    _, said = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not said["unexpected_keys"] and not said["missing_keys"]


def test_strip_head_refuses_a_head_inside_the_roots_flat_parameter_and_writes_nothing(one):
    found = one["fsdp-wrapped"]
    assert "wrap_policy" in found["says"] and found["files"] == ["global_step_1"]


@pytest.mark.parametrize("end", ["", "-packed=1", "-budget=24"])
def test_the_head_reads_the_tokens_that_a_transform_drops(one, end):
    """SEAL's loss sums over all trajectories: dropping those of one label from the policy's loss must leave it two classes."""
    whole, thinned = (one[f"fsdp2-full{kind}{end}"]["first"]["metrics"] for kind in ("", "-dropped=1"))
    for name in ("label", "loss", "accuracy", "probability"):
        assert thinned[f"verl_entropy/seal/{name}"] == pytest.approx(whole[f"verl_entropy/seal/{name}"], abs=2e-6), name
    assert 0.2 < thinned["verl_entropy/seal/label"] < 0.8
    assert abs(thinned["verl_entropy/epo/entropy"] - whole["verl_entropy/epo/entropy"]) > 1e-4  # the policy's tokens are others


def test_strip_head_never_overwrites_and_says_what_is_wrong(two, two_folder, tmp_path):
    from verl_entropy.tools.checkpoint import CheckpointError, strip_head

    source = two_folder / "global_step_1-fsdp2"
    with pytest.raises(CheckpointError, match="exists already"):
        strip_head(source, two_folder / "stripped-fsdp2")
    with pytest.raises(CheckpointError, match=f"^{two_folder / 'stripped-fsdp2'}.*no SEAL head"):
        strip_head(two_folder / "stripped-fsdp2", tmp_path / "again")
    with pytest.raises(CheckpointError, match="no such folder"):
        strip_head(tmp_path / "nothing", tmp_path / "again")
    (tmp_path / "other" / "actor").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=f"^{tmp_path}/other/actor: no model_world_size"):
        strip_head(tmp_path / "other", tmp_path / "again")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
