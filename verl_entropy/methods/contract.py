# SPDX-License-Identifier: Apache-2.0
"""What every method keeps, ours and other packages': ``verl-entropy check NAME`` prints it, the test suite runs it on all.

Each check builds a small random batch (three prompts, two trajectories each, two turns each, one row per turn), runs the method on it
and on a changed copy, and compares. A method that needs something of its batch that no batch here has says so by raising.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verl_entropy.batch.turns import build_turns
from verl_entropy.methods.context import AdvantageContext, ClipBounds, LossContext
from verl_entropy.methods.method import NEEDS, Head, Method, Rollout
from verl_entropy.methods.result import TransformResult

PROMPTS, TRAJECTORIES, TURNS, WIDTH, VOCAB, HIDDEN = 3, 2, 2, 6, 11, 8
ROWS = PROMPTS * TRAJECTORIES * TURNS
RTOL, ATOL = 1e-5, 1e-6
"""Of two computations of the same fp32 value in another order."""
GARBAGE = 1e30


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    check: str
    verdict: str
    """ok, FAIL, or - where the check does not apply."""
    detail: str = ""


@dataclass
class Batch:
    """A batch as a host hands it over."""

    mask_RT: Tensor
    logits_RTV: Tensor
    token_RT: Tensor
    advantages_RT: Tensor
    hidden_RTD: Tensor
    group: list[str]
    trajectory: list[str]
    position: list[int]
    score_R: Tensor
    anchor: list[str]
    padding: list[bool]
    garbage: float | None = None
    """What masked positions hold; None: what was drawn."""

    def to(self, device: str) -> Batch:
        moved = {
            f.name: getattr(self, f.name).to(device)
            for f in dataclasses.fields(self)
            if f.name.endswith(("RT", "TV", "TD", "_R"))
        }
        return dataclasses.replace(self, **moved)

    def rows(self, order: list[int], rename: Callable[[str], str] = str) -> Batch:
        """The rows in another order, groups and trajectories under other names."""
        picked: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Tensor):
                picked[f.name] = value[order]
            elif isinstance(value, list):
                picked[f.name] = [value[i] for i in order]
        picked["group"] = [rename(g) for g in picked["group"]]
        picked["trajectory"] = [rename(t) for t in picked["trajectory"]]
        return dataclasses.replace(self, **picked)

    def log_probs(self) -> Tensor:
        log_p = torch.log_softmax(self.logits_RTV.float(), -1)
        return self._masked(log_p.gather(-1, self.token_RT[..., None]).squeeze(-1))

    def entropy(self) -> Tensor:
        log_p = torch.log_softmax(self.logits_RTV.float(), -1)
        return self._masked(-(log_p.exp() * log_p.clamp_min(-1e9)).sum(-1))

    def _masked(self, x_RT: Tensor) -> Tensor:
        if self.garbage is None:
            return x_RT
        return torch.where(self.mask_RT, x_RT, torch.full_like(x_RT, self.garbage))

    def context(self) -> AdvantageContext:
        turns = build_turns(
            self.mask_RT,
            group_R=self.group,
            trajectory_R=self.trajectory,
            position_R=self.position,
            padding_R=self.padding,
            score_R=self.score_R,
            turn_fields=[
                [{"reward": 0.5 * (position + 1), "anchor": anchor, "valid": True}] if trained else []
                for position, anchor, trained in zip(self.position, self.anchor, self.mask_RT.any(-1).tolist(), strict=True)
            ],
        )
        entropy_RT, kept_RT = self.entropy(), turns.mask_RT
        mean = float(entropy_RT[kept_RT].mean()) if bool(kept_RT.any()) else math.nan
        return AdvantageContext(
            plan=None,
            step=3,
            total_steps=10,
            turns=turns,
            mask_RT=kept_RT,
            entropy_RT=entropy_RT,
            old_log_probs_RT=self.log_probs(),
            fields={},
            entropy=mean if math.isfinite(mean) else None,
        )


def draw(seed: int = 0) -> Batch:
    """A random batch; scores are +1 or -1."""
    g = torch.Generator().manual_seed(seed)
    length_R = torch.randint(2, WIDTH + 1, (ROWS,), generator=g)
    session = [(p, j, k) for p in range(PROMPTS) for j in range(TRAJECTORIES) for k in range(TURNS)]
    won = {(p, j): 1.0 if (p + j) % 2 else -1.0 for p, j, _ in session}
    won[PROMPTS - 1, 0] = won[PROMPTS - 1, 1]  # one group of equal returns
    return Batch(
        mask_RT=torch.arange(WIDTH)[None] < length_R[:, None],
        logits_RTV=2.0 * torch.randn(ROWS, WIDTH, VOCAB, generator=g),
        token_RT=torch.randint(VOCAB, (ROWS, WIDTH), generator=g),
        advantages_RT=torch.randn(ROWS, 1, generator=g).expand(ROWS, WIDTH).contiguous(),
        hidden_RTD=torch.randn(ROWS, WIDTH, HIDDEN, generator=g),
        group=[f"prompt{p}" for p, _, _ in session],
        trajectory=[f"prompt{p}_{j}" for p, j, _ in session],
        position=[k for _, _, k in session],
        score_R=torch.tensor([won[p, j] for p, j, _ in session]),
        anchor=[f"room {k}" for _, _, k in session],
        padding=[False] * ROWS,
    )


# ----------------------------------------------------------------------------- running a method


@dataclass
class Output:
    """What a method gave: tensors (R, ...), scalars of the whole batch, metrics."""

    rows: dict[str, Tensor]
    whole: dict[str, Tensor]
    metrics: dict[str, float]


def prepared(method: Method, settings: Any, batch: Batch) -> AdvantageContext:
    """The context after the method's log-prob pass and its state's step."""
    ctx = batch.context()
    if method.logits is not None:
        flat_NV = batch.logits_RTV[batch.mask_RT]
        for name, output in method.logits(settings).items():
            values_RT = torch.zeros(batch.mask_RT.shape, device=batch.mask_RT.device)
            with torch.no_grad():
                values_RT[batch.mask_RT] = output.compute(flat_NV).float()
            ctx.fields[name] = batch._masked(values_RT)
    if method.state is not None:
        state = method.state(settings)
        state.step(_earlier(method, settings, batch))
        ctx.info[method.name] = state.step(ctx)
    return ctx


def _earlier(method: Method, settings: Any, batch: Batch) -> AdvantageContext:
    """A step before, whose batch had half the logits: histories and targets are not those of the step itself."""
    before = dataclasses.replace(batch, logits_RTV=0.5 * batch.logits_RTV.detach())
    return prepared(dataclasses.replace(method, state=None), settings, before)


def run(method: Method, settings: Any, batch: Batch, parts: list[list[int]] | None = None, dp_size: int = 1) -> Output:
    """The method on a batch; ``parts``: the loss side in micro-batches of these rows, summed over the parts and ranks."""
    ctx = prepared(method, settings, batch)
    if method.kind == "estimator":
        advantages_K, metrics = method.apply(ctx, settings)  # type: ignore[attr-defined]
        return Output({"advantages": ctx.turns.to_tokens(advantages_K)}, {}, _named(method, metrics, ctx))
    if method.kind == "transform":
        result = method.apply(ctx, batch.advantages_RT, settings)  # type: ignore[attr-defined]
        kept_RT = ctx.mask_RT if result.mask_RT is None else result.mask_RT & ctx.mask_RT
        inside_RT = torch.where(ctx.mask_RT, result.advantages_RT, 0.0)
        return Output({"advantages": inside_RT, "kept": kept_RT}, {}, _named(method, result.metrics, ctx))
    if isinstance(method, Rollout):
        shared = (
            method.share(ctx, batch.advantages_RT, settings) if method.share is not None else TransformResult(batch.advantages_RT)
        )
        kept_RT = ctx.mask_RT if shared.mask_RT is None else shared.mask_RT & ctx.mask_RT
        scheme = method.apply(settings, {})
        roots = {"roots": torch.tensor([float(scheme.roots(n)) for n in range(1, 17)])}
        inside_RT = torch.where(ctx.mask_RT, shared.advantages_RT, 0.0)
        return Output({"advantages": inside_RT, "kept": kept_RT}, roots, _named(method, shared.metrics, ctx))
    if method.kind == "clip":
        bound = method.apply(ctx.info[method.name])  # type: ignore[attr-defined]
        return Output({}, {"bound": torch.tensor(float(bound))}, _named(method, {}, ctx))
    return _loss_side(method, settings, batch, ctx, parts or [list(range(len(batch.group)))], dp_size)


def _named(method: Method, metrics: Mapping[str, float], ctx: AdvantageContext) -> dict[str, float]:
    return {**{f"verl_entropy/{method.name}/{k}": v for k, v in metrics.items()}, **ctx.metrics}


class _Columns(Mapping[str, Any]):
    """A micro-batch in the layout of the hosts: (R, T) columns nested, (R,) as they are."""

    def __init__(self, columns: Mapping[str, Tensor]):
        self._columns = columns

    def __getitem__(self, name: str) -> Any:
        value = self._columns[name]
        if value.dim() < 2:
            return value
        ends = torch.arange(len(value) + 1, device=value.device) * value.shape[1]
        return torch.nested.nested_tensor_from_jagged(value.reshape(-1), ends)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _loss_side(method: Method, s: Any, batch: Batch, ctx: AdvantageContext, parts: list[list[int]], dp_size: int) -> Output:
    ctx.advantages_RT = torch.where(ctx.mask_RT, batch.advantages_RT, 0.0)
    columns = dict(method.columns(ctx, s)) if method.columns is not None else {}
    if method.batch is not None:
        ctx.info[method.name] = {**ctx.info.get(method.name, {}), **method.batch(ctx, s)}
    leaf_RTV = batch.logits_RTV.clone().requires_grad_()
    live = dataclasses.replace(batch, logits_RTV=leaf_RTV)
    head = method.build(HIDDEN, s, batch.mask_RT.device).eval() if isinstance(method, Head) else None
    hidden_RTD = batch.hidden_RTD.clone().requires_grad_()
    tokens = max(float(ctx.mask_RT.sum()), 1.0)
    total = torch.zeros((), device=batch.mask_RT.device)
    means: dict[str, float] = {}
    entropy_RT, log_prob_RT = live.entropy(), live.log_probs() * 0.9
    for part in parts:
        mask_RT = ctx.mask_RT[part]
        micro = {f"verl_entropy_{name}": column[part] for name, column in columns.items()}
        micro |= {"entropy": ctx.entropy_RT[part], "advantages": ctx.advantages_RT[part]}  # type: ignore[index]
        loss_ctx = LossContext(
            plan=None,
            micro_batch=_Columns(micro),
            model_output={},
            entropy_RT=entropy_RT[part],
            mask_RT=mask_RT,
            loss_mask_RT=mask_RT,
            num_tokens=float(ctx.mask_RT.sum()),
            num_rows=float(ctx.mask_RT.any(-1).sum()),
            dp_size=dp_size,
            info={"step": ctx.step, **ctx.info},
            read_output=_reader(method, s, live, part),
            totals={n: (float(c.sum()), float((c > 0).any(-1).sum())) for n, c in columns.items() if c.dim() == 2},
        )
        share = _term(method, s, loss_ctx, batch, part, log_prob_RT, ctx, head, hidden_RTD, tokens)
        total = total + share / dp_size
        for name, x_RT in loss_ctx.token_means.items():
            means[name] = means.get(name, 0.0) + float(torch.where(mask_RT, x_RT.detach().float(), 0.0).sum()) / tokens
        for name, x in loss_ctx.token_sums.items():
            means[name] = means.get(name, 0.0) + float(x.detach()) / tokens
    if total.requires_grad:
        total.backward()
    grads = {"logits": leaf_RTV.grad, "hidden": hidden_RTD.grad}
    rows = {f"gradient of {n}": g for n, g in grads.items() if g is not None}
    return Output(rows, {"loss": total.detach()}, {**ctx.metrics, **{f"verl_entropy/{n}": v for n, v in means.items()}})


def _reader(method: Method, s: Any, live: Batch, part: list[int]) -> Callable[[str], Tensor]:
    def read(name: str) -> Tensor:
        output = method.logits(s)[name]  # type: ignore[misc]
        mask_RT = live.mask_RT[part]
        return torch.zeros(mask_RT.shape, device=mask_RT.device).masked_scatter(
            mask_RT, output.compute(live.logits_RTV[part][mask_RT])
        )

    return read


def _term(
    method: Any,
    s: Any,
    ctx: LossContext,
    batch: Batch,
    part: list[int],
    log_prob_RT: Tensor,
    whole: AdvantageContext,
    head: Any,
    hidden_RTD: Tensor,
    tokens: float,
) -> Tensor:
    if method.kind == "regularizer":
        return method.apply(ctx, s)
    if method.kind == "head":
        token_N = ctx.mask_RT.reshape(-1).nonzero().squeeze(-1)
        logits_N = head(hidden_RTD[part].reshape(-1, HIDDEN)[token_N])
        return method.apply(ctx, s, logits_N, token_N, token_N // ctx.mask_RT.shape[1])
    assert whole.advantages_RT is not None  # a loss is run after base and transforms
    old_RT, clip = whole.log_probs()[part], ClipBounds(0.2, 0.28, 3.0)
    loss_RT, info = method.apply(ctx, s, clip, log_prob_RT[part], old_RT, whole.advantages_RT[part], ctx.mask_RT)
    ctx.token_means.update({f"{method.name}/{k}": v for k, v in info.items()})
    return torch.where(ctx.mask_RT, loss_RT, 0.0).sum() / tokens * ctx.dp_size


# ----------------------------------------------------------------------------- the checks


def _close(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x, y.to(x.device), rtol=RTOL, atol=ATOL)


def _differ(a: Output, b: Output, order: list[int] | None = None, width: int | None = None) -> str:
    """What differs between two outputs; ``order``: b's rows are a's in this order. Empty: nothing."""
    for name, x in a.rows.items():
        y = b.rows[name]
        x = x if order is None else x[order]
        y = y[: len(x), : x.shape[1]]
        if x.dtype == torch.bool:
            if not torch.equal(x, y.to(x.device)):
                return f"{name} differ in {int((x != y.to(x.device)).sum())} places"
            continue
        distance = (x - y.to(x.device)).abs().max() if x.numel() else torch.zeros(())
        if not _close(x, y):
            return f"{name} differs by up to {float(distance):.3g}"
    for name, x in a.whole.items():
        if not _close(x, b.whole[name]):
            return f"{name} is {x.tolist()} and {b.whole[name].tolist()}"
    return ""


def _description(method: Method, s: Any) -> str:
    found = []
    if not method.name.isidentifier() or method.name != method.name.lower():
        found.append(f"name {method.name!r}: use lower-case letters, digits and _")
    found += [f"{f} is empty" for f in ("summary", "when", "cost", "source") if not getattr(method, f).strip()]
    needed = method.needs.union(*(values.values() for values in method.needs_with.values()))
    found += [f"needs {need!r}: known are {', '.join(NEEDS)}" for need in sorted(needed - set(NEEDS))]
    params = getattr(method.settings, "__dataclass_params__", None)
    if params is None or not params.frozen:
        found.append("settings: make it a frozen dataclass")
    else:
        found += [
            f"setting {f.name}: no text (use setting(default, text))"
            for f in dataclasses.fields(method.settings)
            if not f.metadata.get("doc")
        ]
    for path in (method.function, *method.equations):
        module, _, name = path.rpartition(".")
        if not inspect.getdoc(getattr(importlib.import_module(module), name, None)):
            found.append(f"function {path}: not there, or without a docstring")
    return "; ".join(found)


def _neutral(method: Method, s: Any) -> str:
    batch = draw()
    out = run(method, dataclasses.replace(s, **dict(method.neutral or {})), batch)
    if method.kind in ("transform", "rollout"):
        if "roots" in out.whole and not torch.equal(out.whole["roots"], torch.arange(1.0, 17.0)):
            return "sessions wait for a branch"
        wanted = torch.where(batch.mask_RT, batch.advantages_RT, 0.0)
        if not torch.equal(out.rows["advantages"], wanted):
            return "advantages are changed"
        return "" if bool(out.rows["kept"].eq(batch.mask_RT).all()) else "tokens are dropped"
    moved = {n: float(x.abs().max()) for n, x in {**out.rows, **out.whole}.items() if float(x.abs().max()) != 0.0}
    return "; ".join(f"{name} is {value:.3g}, not 0" for name, value in moved.items())


def _effect(method: Method, s: Any) -> str:
    batch = draw()
    out = run(method, s, batch)
    if method.kind == "rollout":
        return "" if bool((out.whole["roots"] < torch.arange(1.0, 17.0)).any()) else "no session waits for a branch"
    if method.kind == "transform":
        same = torch.equal(out.rows["advantages"], torch.where(batch.mask_RT, batch.advantages_RT, 0.0))
        return "nothing is changed" if same and bool(out.rows["kept"].eq(batch.mask_RT).all()) else ""
    return "" if any(bool(x.any()) for x in (*out.rows.values(), *out.whole.values())) else "everything is 0"


def _order(method: Method, s: Any) -> str:
    batch, order = draw(), torch.randperm(ROWS, generator=torch.Generator().manual_seed(1)).tolist()
    return _differ(run(method, s, batch), run(method, s, batch.rows(order, lambda name: f"x{name[::-1]}")), order)


def _masked(method: Method, s: Any) -> str:
    batch = draw()
    dirty_RT = torch.where(batch.mask_RT, batch.advantages_RT, GARBAGE)
    dirty = dataclasses.replace(batch, garbage=math.nan, advantages_RT=dirty_RT)
    return _differ(run(method, s, batch), run(method, s, dirty))


def _padding(method: Method, s: Any) -> str:
    batch = draw()
    more: dict[str, Any] = {
        f.name: torch.nn.functional.pad(getattr(batch, f.name), (*(0, 0) * (getattr(batch, f.name).dim() - 2), 0, 3))
        for f in dataclasses.fields(batch)
        if isinstance(getattr(batch, f.name), Tensor) and f.name != "score_R"
    }
    return _differ(run(method, s, batch), run(method, s, dataclasses.replace(batch, **more)))


def _splits(method: Method, s: Any) -> str:
    batch = draw()
    whole, order = run(method, s, batch), list(range(ROWS))
    return _differ(whole, run(method, s, batch, [order[:5], order[5:6], order[6:]])) or _differ(
        whole, run(method, s, batch, [order[:4], order[4:]], dp_size=2)
    )


def _ambient(method: Method, s: Any) -> str:
    batch = draw()
    plain = run(method, s, batch)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = run(method, s, batch)
    wrong = [f"{n} is {x.dtype}" for n, x in mixed.rows.items() if x.dtype not in (torch.float32, torch.bool)]
    # Matrix products of a head may run in bf16 under autocast; its loss may not.
    return "; ".join(wrong) or ("" if method.kind == "head" else _differ(plain, mixed))


def _factories(method: Method, s: Any) -> str:
    """Tensors that a method makes without saying where: under another default device they do not meet the batch's."""
    batch = draw()
    ctx = prepared(method, s, batch)
    with torch.device("meta"):
        if method.kind == "estimator":
            value = method.apply(ctx, s)[0]  # type: ignore[attr-defined]
        else:
            value = method.apply(ctx, batch.advantages_RT, s).advantages_RT  # type: ignore[attr-defined]
    return "" if value.device.type == "cpu" else f"the result is on {value.device}"


def _cuda(method: Method, s: Any) -> str:
    batch = draw()
    return _differ(run(method, s, batch), run(method, s, batch.to("cuda")))


def _edges(method: Method, s: Any) -> str:
    batch, found = draw(), []
    certain = torch.full_like(batch.logits_RTV, -math.inf).scatter(-1, batch.token_RT[..., None], 0.0)
    cases = {
        "an empty mask": dataclasses.replace(batch, mask_RT=torch.zeros_like(batch.mask_RT)),
        "groups of one": dataclasses.replace(
            batch, group=[f"g{t}" for t in batch.trajectory], trajectory=[f"g{t}_0" for t in batch.trajectory]
        ),
        "equal returns and entropies": dataclasses.replace(
            batch, score_R=torch.ones(ROWS), logits_RTV=batch.logits_RTV[:1, :1].expand(ROWS, WIDTH, VOCAB).contiguous()
        ),
        "certain tokens (logits of -inf)": dataclasses.replace(batch, logits_RTV=certain),
        "advantages of 0": dataclasses.replace(batch, advantages_RT=torch.zeros(ROWS, WIDTH)),
    }
    for name, case in cases.items():
        out = run(method, s, case)
        odd = [n for n, x in {**out.rows, **out.whole}.items() if x.is_floating_point() and not bool(x.isfinite().all())]
        found += [f"{name}: {n} is not finite" for n in odd]
    return "; ".join(found)


def _untouched(method: Method, s: Any) -> str:
    batch = draw()
    before = {
        f.name: getattr(batch, f.name).clone() for f in dataclasses.fields(batch) if isinstance(getattr(batch, f.name), Tensor)
    }
    run(method, s, batch)
    return "; ".join(f"{name} was changed in place" for name, x in before.items() if not torch.equal(x, getattr(batch, name)))


def _state(method: Method, s: Any) -> str:
    assert method.state is not None
    first, batches = method.state(s), [draw(seed) for seed in range(3)]
    stateless = dataclasses.replace(method, state=None)
    first.step(prepared(stateless, s, batches[0]))
    saved = json.loads(json.dumps(first.state_dict(), allow_nan=False))
    second = method.state(s)
    second.load_state_dict(saved)
    for batch in batches[1:]:
        a, b = (st.step(prepared(stateless, s, batch)) for st in (first, second))
        if json.dumps(a) != json.dumps(b):
            return f"after a resume the state says {b}, without one {a}"
    if saved:
        try:
            second.load_state_dict({"nonsense": 1})
        except (ValueError, KeyError, TypeError):
            return ""
        return "a wrong state is taken without an error"
    return ""


def _metrics(method: Method, s: Any) -> str:
    out = run(method, s, draw())
    prefix = f"verl_entropy/{method.name}/"
    stray = [name for name in out.metrics if not name.startswith(prefix) or name.removeprefix(prefix) not in method.metrics]
    odd = [name for name, value in out.metrics.items() if not math.isfinite(value)]
    found = [f"{name} is not among the method's metrics" for name in stray] + [f"{name} is not finite" for name in odd]
    return "; ".join(found)


_LOSS_SIDE = ("loss", "regularizer", "head")
CHECKS: dict[str, tuple[Callable[[Method, Any], str], Callable[[Method], bool]]] = {
    "description complete": (_description, lambda m: True),
    "an effect (with the settings of ``example``)": (_effect, lambda m: True),
    "neutral settings change nothing": (_neutral, lambda m: m.neutral is not None),
    "order of rows and names of groups": (_order, lambda m: True),
    "masked positions are not read": (_masked, lambda m: True),
    "padding": (_padding, lambda m: True),
    "micro-batches and ranks": (_splits, lambda m: m.kind in _LOSS_SIDE),
    "fp32 under bf16 autocast": (_ambient, lambda m: True),
    "tensors made on the batch's device": (_factories, lambda m: m.kind in ("estimator", "transform")),
    "cuda": (_cuda, lambda m: torch.cuda.is_available()),
    "edges: finite value and gradient": (_edges, lambda m: True),
    "inputs stay as they are": (_untouched, lambda m: True),
    "state to JSON and back": (_state, lambda m: m.state is not None),
    "metrics documented": (_metrics, lambda m: True),
}


def check(method: Method) -> list[Result]:
    """All checks on one method, with its default settings, or those of ``example``."""
    settings = method.settings(**dict(method.example))
    return [_one(name, test, applies, method, settings) for name, (test, applies) in CHECKS.items()]


def _one(
    name: str, test: Callable[[Method, Any], str], applies: Callable[[Method], bool], method: Method, settings: Any
) -> Result:
    if not applies(method):
        return Result(name, "-")
    try:
        detail = test(method, settings)
    except Exception as error:
        detail = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return Result(name, "FAIL" if detail else "ok", detail)
