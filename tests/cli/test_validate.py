# SPDX-License-Identifier: Apache-2.0
"""``validate``: composes as main_ppo does, runs the driver's checks, and refuses bad input in one line with the fix."""

import json

import pytest

from verl_entropy import cli
from verl_entropy.config import compose
from verl_entropy.config.settings import ConfigError

pytest.importorskip("verl")

ROLLOUTS = "actor_rollout_ref.rollout.n=8"
SIZES = [
    ROLLOUTS,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
]
MODEL = ["--vocab", "1000", "--hidden", "64"]


def run(capsys, *argv):
    capsys.readouterr()
    code = cli.main(["validate", *argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_sound_run_is_accepted_with_its_plan_and_memory(capsys):
    code, out, _ = run(capsys, "+entropy=[gigpo,aem,seal,epo]", "algorithm.entropy.aem.temperature=0.5", *SIZES, *MODEL)
    assert code == 0, out
    assert max(map(len, out.splitlines())) <= 80
    for text in ("gigpo, verl-entropy's", "aem (temperature 0.5)", "seal, alpha 0.02", "0.001 per nat", "in nats", "SEAL head"):
        assert text in out
    import ray

    assert not ray.is_initialized()


def test_another_engine_is_composed_and_its_memory_is_not_estimated(capsys):
    words = ["model_engine=megatron", "steer", "algorithm.adv_estimator=grpo", *SIZES]
    code, out, _ = run(capsys, *words, *MODEL)
    assert code == 0 and "verl's code for this training engine" in out and "memory: estimated for FSDP alone" in out, out
    code, _, error = run(capsys, *words, "+actor_rollout_ref.actor.policy_loss.regularizer=epo")
    assert code == 2 and "actor_rollout_ref.actor.strategy=megatron: epo needs entropy with its gradient" in error


def test_a_pass_without_a_size_says_so_behind_its_name(capsys):
    out = run(capsys, "gigpo,aem", ROLLOUTS, *MODEL)[1]
    assert "  old log-probs   size not set (" in out and "  update          size not set (" in out


def test_words_after_an_option_are_read_too(capsys):
    code, out, error = run(capsys, "gigpo", "--vocab", "1000", "--hidden", "64", "aem", *SIZES)
    assert code == 0 and "presets         aem, gigpo" in out and error == ""
    with pytest.raises(SystemExit):
        run(capsys, "gigpo", "--vocab", "1000", "--vocabulary", "7")


def test_json_has_the_same(capsys):
    code, out, _ = run(capsys, "gigpo,aem", *SIZES, *MODEL, "--json")
    found = json.loads(out)
    assert code == 0 and found["verl"] is None
    assert found["plan"]["base"] == {"name": "gigpo", "from": "verl-entropy"}
    assert [t["name"] for t in found["plan"]["transforms"]] == ["aem"]
    assert found["memory"]["update"]["tokens"] == 2 * (512 + 512)
    assert found["memory"]["update"]["paths"].keys() >= {"chunked", "compiled", "eager"}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (["actor_rollout_ref.actor.entropy_coeff=0.01"], 0.01),
        (["epo"], 0.001),
        (["entropy_bonus", "actor_rollout_ref.actor.policy_loss.entropy_bonus.coef=0.02"], 0.02),
        (["siren"], 0.0),
    ],
)
def test_effective_entropy_coeff_is_that_of_whoever_owns_the_term(capsys, words, value):
    found = json.loads(run(capsys, *words, *SIZES, "--json")[1])
    assert found["plan"]["entropy_coeff"]["value"] == value


def test_verls_own_refusal_is_reported(capsys):
    code, out, err = run(capsys, "gigpo", ROLLOUTS)  # no micro-batch size
    assert code == 2 and "verl would stop the run" in err  # as what verl-entropy refuses: either way the run would not start
    assert "verl would stop the run" in out and "ppo_micro_batch_size" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["actor_rollout_ref.rollout.top_p=0.9"], "cut distribution"),
        (["actor_rollout_ref.model.use_fused_kernels=True"], "bf16"),
        (["repo_r", "actor_rollout_ref.actor.entropy_coeff=0.01"], "pushes beside repo_r"),
        (["actor_rollout_ref.rollout.dtype=float16"], "not the one that is trained"),
        (["epo", "+algorithm.entropy.log_probs=verl", "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False"], "8 bytes"),
        (["+algorithm.entropy.aem.temperature=0.5"], "does nothing"),
        ([], "default_agent_loop=single_turn_agent gives none"),
    ],
)
def test_a_risk_is_a_warning_and_fails_with_strict(capsys, words, says):
    argv = ["gigpo", *words, *SIZES]
    code, out, _ = run(capsys, *argv, "--strict")
    assert code == 1 and says in " ".join(out.split())
    assert "FAIL" not in out  # without --strict nothing stops it


def test_a_warning_alone_is_no_failure(capsys):
    code, out, _ = run(capsys, "gigpo", "actor_rollout_ref.rollout.top_p=0.9", *SIZES)
    assert code == 0 and "warn" in out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gigpo", "actor_rollout_ref.rollout.n=1"], "rollout.n=8"),
        (["aem", ROLLOUTS, "algorithm.entropy.aem.temperature=-1"], "must be >= 0"),
        (["gigpo,loop", ROLLOUTS], "both set the estimator"),
        (["algorithm.adv_estimator=nope"], "not registered"),
        (["actor_rollout_ref.actor.policy_loss.loss_mode=nope"], "not registered"),
        (["seal", "actor_rollout_ref.model.use_fused_kernels=True"], "use_fused_kernels=False"),
        (["+data.env.name=no_such.module:Env"], "data.env.name"),
    ],
)
def test_refused_by_the_drivers_checks_in_one_line(capsys, words, says):
    code, out, err = run(capsys, *words)
    assert code == 2 and says in err and err.count("\n") == 1 and not out


# ----------------------------------------------------------------------------- composition, without torch


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["gigppo"], "Did you mean gigpo?"),
        (["+entropy=[gigpoo]"], "Did you mean gigpo?"),
        (["trainer.default_local_dir=/ckpt/lr=1e-6"], "Quote it: \"trainer.default_local_dir='/ckpt/lr=1e-6'\""),
        (["nonsense!"], "neither an override"),
        (["+entropy=nonesuch"], "entropy/nonesuch"),
        (["actor_rollout_ref.actor.entropy_coef=1"], "Did you mean actor_rollout_ref.actor.entropy_coeff?"),
        (["actor_rollout_ref.rollout.n=abc"], "actor_rollout_ref.rollout.n='abc': expected a number"),
        (["trainer.use_v1=maybe"], "expected true or false"),
        (["actor_rollout_ref.actor.policy_loss=null"], "needs this group"),
        (["actor_rollout_ref.actor.policy_loss=3"], "expected a group"),
        (["algorithm.adv_estimator=${nowhere}"], "algorithm.adv_estimator"),
        (["+entropy=[gigpo"], "alternative"),
        (["missing.yaml"], "no such file"),
    ],
)
def test_bad_words_are_refused_with_the_fix(words, says):
    with pytest.raises(ConfigError) as error:
        compose.compose(words)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words here\n", "a: [1\n", "hydra: 3\na: 1\n", "entropy: [nope]\n"])
def test_a_file_that_is_no_recipe_is_refused(tmp_path, text):
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        compose.compose([], str(file))


PLAIN = """
entropy: [gigpo, aem]
data: {train_batch_size: 16}
actor_rollout_ref:
  actor: {optim: {lr: 1e-6}}
"""
HYDRA = """
defaults: [ppo_trainer, {entropy: [gigpo, aem]}, _self_]
data: {train_batch_size: 16}
actor_rollout_ref:
  actor: {optim: {lr: 1e-6}}
"""


def test_a_recipe_that_is_an_option_of_a_group_finds_its_parts(tmp_path):
    (tmp_path / "aem" / "alfworld").mkdir(parents=True)
    (tmp_path / "parts").mkdir()
    head = "# @package _global_\n"
    (tmp_path / "parts" / "common.yaml").write_text(head + "data: {train_batch_size: 16}\n")
    file = tmp_path / "aem" / "alfworld" / "grpo.yaml"
    file.write_text(head + "defaults:\n  - /parts/common\n  - /entropy: [aem]\n  - _self_\ndata: {seed: 7}\n")
    (file.parent / "dapo.yaml").write_text(head + "defaults: [grpo, _self_]\ndata: {seed: 8}\n")
    for name, seed in (("grpo", 7), ("dapo", 8)):
        config = compose.compose(["data.train_batch_size=32"], str(file.parent / f"{name}.yaml"))
        assert (config.data.train_batch_size, config.data.seed) == (32, seed)
        assert "aem" in config.algorithm.entropy


@pytest.mark.parametrize("text", [PLAIN, HYDRA], ids=["plain", "hydra"])
def test_a_recipe_is_composed_over_verls_defaults_and_words_come_last(tmp_path, text):
    file = tmp_path / "it's a recipe.yaml"
    file.write_text(text)
    config = compose.compose(["data.train_batch_size=32"], str(file))
    assert (config.data.train_batch_size, config.algorithm.adv_estimator) == (32, "gigpo")
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6 and config.algorithm.entropy.aem.temperature == 1.0
    assert compose.compose([str(file)]).data.train_batch_size == 16


def test_a_critic_whose_model_is_not_on_this_machine_is_a_note_and_no_wait(capsys):
    argv = ["+entropy=aem", "algorithm.adv_estimator=gae", "critic.model.path=nobody/has-this-model", *SIZES]
    code, out, _ = run(capsys, *argv, "critic.ppo_micro_batch_size_per_gpu=2", *MODEL)
    assert code == 0 and "nobody/has-this-model is not on this machine" in " ".join(out.split()), out


# ----------------------------------------------------------------------------- values that cannot work, and odd ones

ROLLOUT, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
REFUSED = [
    (f"{ROLLOUT}.temperature=0", "must be above 0"),
    (f"{ROLLOUT}.temperature=-1", "must be above 0"),
    (f"{ROLLOUT}.top_p=0", "above 0, at most 1"),
    ("trainer.n_gpus_per_node=0", "at least 1"),
    (f"{ACTOR}.grad_clip=0", "every gradient zero"),
    (f"{ROLLOUT}.agent.default_agent_loop=stepwise_evn", "Did you mean stepwise_env?"),
    (f"{ROLLOUT}.tensor_model_parallel_size=999", "more than the 8 GPU(s)"),
    (f"{ROLLOUT}.max_model_len=256", "leaves no token"),
    ("trainer.device=cdua", "Did you mean cuda?"),
    ("trainer.resume_mode=autoo", "Did you mean auto?"),
    ("data.truncation=lft", "Did you mean left?"),
    (f"{ROLLOUT}.name=vlm", "Did you mean vllm?"),
    (f"{ACTOR}.strategy=fdsp2", "Did you mean fsdp2?"),
    ("trainer.logger=[console,wandbb]", "Did you mean wandb?"),
    (f"{ACTOR}.clip_ratio_c=0.5", "must be above 1"),
    (f"{ACTOR}.optim.weight_decay=-1", "at least 0"),
    ("trainer.total_epochs=0", "nothing is trained"),
    (f"{ACTOR}.ulysses_sequence_parallel_size=64", "more than the 8 GPU(s)"),
    ("+algorithm.entropy.diagnostics.run_file.folder=/proc/runs", "cannot be written to"),
    (f"{ROLLOUT}.mode=sync", "Set one of async"),
    (f"{ROLLOUT}.n=1.5", "whole number"),
    (f"{ROLLOUT}.agent.num_workers=0", "whole number, at least 1"),
    (f"{ROLLOUT}.multi_turn.format=hermess", "Did you mean hermes?"),
    (f"{ROLLOUT}.checkpoint_engine.backend=ncl", "Did you mean nccl?"),
    (f"{ROLLOUT}.max_num_seqs=0", "at least 1"),
    (f"{ACTOR}.ppo_micro_batch_size_per_gpu=0", "at least 1"),
    (f"{ACTOR}.kl_loss_type=foo", "Set one of kl, k1"),
    (f"{ACTOR}.optim.clip_grad=0", "every gradient zero"),
    (f"{ACTOR}.optim.min_lr_ratio=2", "from 0 to 1"),
    (f"{ACTOR}.fsdp_config.model_dtype=fp23", "Did you mean fp32?"),
    (f"{ACTOR}.fsdp_config.fsdp_size=3", "does not divide the 8 GPU(s)"),
    (f"{ACTOR}.checkpoint.save_contents=[modle]", "Did you mean model?"),
    ("actor_rollout_ref.model.lora_rank=-4", "at least 0"),
    ("actor_rollout_ref.model.path=null", "no model"),
    ("data.gen_batch_size=0", "at least 1"),
    ("data.train_max_samples=0", "-1 (all)"),
    ("data.seed=abc", "whole number"),
    ("data.train_files=[]", "no data"),
    ("algorithm.kl_penalty=foo", "Set one of kl, k1"),
    ("algorithm.kl_ctrl.type=adaptiv", "Did you mean adaptive?"),
    ("algorithm.rollout_correction.rollout_is=tokn", "Did you mean token?"),
    ("trainer.resume_mode=resume_path", "needs the folder global_step_N"),
    ("trainer.total_epochs=0.5", "whole number"),
    ("trainer.total_training_steps=abc", "whole number"),
    ("trainer.v1.trainer_mode=colocated_async", "Did you mean colocate_async?"),
    ("trainer.v1.sampler.max_off_policy_threshold=0", "at least 1"),
    ("+algorithm.entropy.diagnostics.run_file.folder=/etc/hostname/runs", "is a file"),
]


@pytest.mark.parametrize(("word", "says"), REFUSED, ids=lambda v: v if "=" in v else "")
def test_a_value_that_cannot_work_is_refused_by_validate_and_at_the_start(capsys, word, says):
    code, out, err = run(capsys, "gigpo", *SIZES, word)
    assert code == 2 and says in err and word.lstrip("+").split("=")[0] in err and err.count("\n") == 1 and not out
    from verl_entropy.hosts.install import activate

    activate.install()
    from verl.utils.config import validate_config

    with pytest.raises(SystemExit) as stopped:
        validate_config(compose.compose(["gigpo", *SIZES, word]), use_reference_policy=False, use_critic=False)
    assert says in str(stopped.value.code)


FILTER = ["algorithm.filter_groups.enable=True"]
ODD = [
    ([f"{ROLLOUT}.response_length=100"], "data.max_response_length=512, but"),
    ([f"{ROLLOUT}.max_model_len=600"], "responses to long prompts are cut"),
    (["data.train_files=/nowhere/a.parquet"], "/nowhere/a.parquet is not on this machine"),
    (["actor_rollout_ref.model.path=/nowhere/model"], "no such folder on this machine"),
    (["data.train_batch_size=16", f"{ACTOR}.use_dynamic_bsz=True"], "ppo_mini_batch_size=16 or less"),
    ([f"{ACTOR}.optim.lr=1000"], "the policy will be lost"),
    ([f"{ACTOR}.optim.lr_warmup_steps_ratio=2"], "never gets to optim.lr"),
    ([f"{ACTOR}.ppo_mini_batch_size=100"], "no multiple of"),
    ([f"{ACTOR}.clip_ratio_high=0"], "at 0 none can rise"),
    ([f"{ROLLOUT}.load_format=dumy"], "Did you mean dummy?"),
    ([f"{ROLLOUT}.logprobs_mode=raw_logprobs", f"{ROLLOUT}.temperature=0.7"], "processed_logprobs"),
    ([f"{ROLLOUT}.ignore_eos=True"], "past its end token"),
    ([f"{ROLLOUT}.val_kwargs.n=4"], "responses to one prompt are alike"),
    ([f"{ACTOR}.use_dynamic_bsz=True", f"{ACTOR}.ppo_max_token_len_per_gpu=64"], "verl stops at the first row that is longer"),
    ([f"{ACTOR}.grad_clip=0.5"], "verl's engines go by"),
    (
        [f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=0", "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8"],
        "does nothing",
    ),
    ([*FILTER, "algorithm.filter_groups.metric=acc", "algorithm.filter_groups.max_num_gen_batches=10"], "samples for ever"),
    ([*FILTER, f"{ROLLOUT}.agent.default_agent_loop=stepwise_env"], "whose reward is not the episode's"),
    ([*FILTER, "trainer.use_v1=False"], "RayPPOTrainer does not read it"),
    (["trainer.critic_warmup=5"], "not trained before that step"),
    (["reward.reward_manager.name=dappo"], "Did you mean dapo?"),
    (["reward.custom_reward_function.path=/nowhere.py"], "not on this machine"),
    (["trainer.resume_mode=resume_path", "trainer.resume_from_path=/nowhere/global_step_3"], "not on this machine"),
    (["clip_b,clip_v"], "Choose one"),
    (["seal", "actor_rollout_ref.actor.seal.alpha=2000"], "outweighs the policy's loss"),
    (["entrocraft_switch", "+data.env.name=household"], "trajectory scores of +1 or -1"),
]


@pytest.mark.parametrize(("words", "says"), ODD, ids=[says for _, says in ODD])
def test_an_odd_value_is_a_warning_of_validate_and_of_the_start(capsys, words, says):
    from verl_entropy.hosts.install import activate

    activate.install()
    from verl.utils.config import validate_config

    if "=" in words[0]:
        words = ["gigpo", *words]
    code, out, _ = run(capsys, *words, *SIZES, *MODEL)
    assert code == 0 and says in " ".join(out.split()), out
    capsys.readouterr()
    validate_config(compose.compose([*words, *SIZES]), use_reference_policy=False, use_critic=False)
    told = capsys.readouterr()
    assert says in told.out + told.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trainer.save_freq=5", "trainer.default_local_dir=/proc/checkpoints"], "/proc/checkpoints: /proc cannot be written to"),
        (["actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=0"], "the adapter does nothing"),
        (["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=0"], "horizon=0: must be above 0"),
        (["algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=null"], "what a group is judged by"),
        ([f"{ROLLOUT}.tensor_model_parallel_size=4", f"{ROLLOUT}.data_parallel_size=4"], "one sampler then takes 16"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_values_that_cannot_work_together_are_refused(capsys, words, says):
    code, out, err = run(capsys, "gigpo", *SIZES, *words)
    assert code == 2 and says in err and not out, (out, err)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (f"{ACTOR}.optim.optimizer=AdamX", "has no such class"),
        (f"{ACTOR}.optim.optimizer_impl=torch.optm", "torch.optm"),
        (f"{ROLLOUT}.disaggregation.enabled=True", "disaggregation"),
    ],
)
def test_what_verls_workers_would_stop_at_is_said_before(capsys, word, says):
    code, out, err = run(capsys, "gigpo", *SIZES, *MODEL, word, f"{ROLLOUT}.name=trtllm")
    assert code == 2 and says in err, (out, err)


def test_words_of_another_packages_plugin_pass(monkeypatch):
    from importlib import metadata

    from verl_entropy.config import startup

    raw = {"trainer": {"v1": {"trainer_mode": "theirs"}}, "data": {"train_files": None, "custom_cls": {"path": "mine.py"}}}
    with pytest.raises(ConfigError, match="trainer_mode=theirs: not known"):
        startup._refuse_words(raw)
    ours, theirs = (metadata.EntryPoint("p", module, "verl.plugins") for module in ("verl_entropy.plugin", "theirs.plugin"))
    monkeypatch.setattr(metadata, "entry_points", lambda group: [ours, theirs])
    startup._refuse_words(raw)
    startup._refuse_combinations(raw)
    monkeypatch.setattr(metadata, "entry_points", lambda group: [ours])
    backend = {"custom_backend_module": "mine.engines", "backend": "mine"}
    startup._refuse_words({"actor_rollout_ref": {"rollout": {"checkpoint_engine": backend}}})
    with pytest.raises(ConfigError, match="no data"):
        startup._refuse_combinations({"data": {"train_files": None}})


def test_a_prompt_beyond_the_models_positions_is_warned_of(capsys, tmp_path):
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 700, "vocab_size": 1000, "hidden_size": 64}')
    code, out, _ = run(capsys, "gigpo", *SIZES, f"actor_rollout_ref.model.path={tmp_path}")
    assert code == 0 and "700 positions" in " ".join(out.split()), out
