"""A second implementation of every algorithm in plain NumPy, from the papers, with full batches.

Its only inputs are the cohort and the clients that answered.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import torch
from tests.support import hidden
from tests.support.reference import bisection

from drfl.ambiguity import ChiSquare, Simplex


def path_of(oracle, i, w, local, *, shift=0.0, prox=0.0):
    """Return client i's models after each local step."""
    u, velocity, path = w, np.zeros_like(w), []
    for _ in range(local.steps):
        direction = oracle.gradient(i, u) + local.weight_decay * u + shift + prox * (u - w)
        velocity = local.momentum * velocity + direction
        u = u - local.lr * velocity
        path.append(u)
    return path


def moved(ambiguity, lam, v, step):
    """Return argmax over Λ of ⟨u, v⟩ − ψ(u) − ‖u − λ‖²/(2·step), for the simplex with a floor or ψ = χ²."""
    n, target = len(lam), lam + step * v
    match ambiguity:
        case Simplex(floor=floor):
            return floor + bisection(target, 1 - floor * n)
        case ChiSquare(rho=rho):
            return bisection((target + step * rho) / (1 + step * rho * n))
    raise ValueError(f"the reference knows no {ambiguity}")


def start(algorithm, oracle):
    """Return λ before the first round."""
    return oracle.shares if algorithm.lam0 == "shares" else np.full(oracle.n, 1 / oracle.n)


def calls_of(played, kind):
    return [call for call in played.calls if call.kind == kind]


def who(played, kind):
    """Return the clients that answered this kind of request."""
    return sorted(i for call in calls_of(played, kind) for i in call.answered.tolist())


def mean(weights, of):
    """Return Σ_i a_i of(i) / Σ_i a_i, with equal weights if all a_i are 0."""
    weights = weights if sum(weights.values()) > 0 else dict.fromkeys(weights, 1.0)
    return sum(a * of[i] for i, a in weights.items()) / sum(weights.values())


def averaging(algorithm, oracle, rounds, *, prox=0.0, tail=None):
    """FedAvg, FedProx and DeltaFL: the mean of the local models, weighted by fixed λ."""
    w, states = oracle.w0, []
    lam = oracle.shares if algorithm.by_samples else np.full(oracle.n, 1 / oracle.n)
    for played in rounds:
        clients = who(played, "train")
        if tail is not None:
            chosen = tail(oracle, w, lam, who(played, "losses"))
            clients = [i for i in clients if i in chosen]
        if clients:
            models = {i: path_of(oracle, i, w, algorithm.local, prox=prox)[-1] for i in clients}
            w = mean({i: lam[i] for i in clients}, models)
        states.append({"w": w})
    return states


def fedavg(algorithm, oracle, rounds):
    return averaging(algorithm, oracle, rounds)


def fednova(algorithm, oracle, rounds):
    """x ← x − τ_eff Σ_i p_i Σ_k a_ik·η·g_ik / ‖a_i‖₁, with the gradients of each client's τ local steps."""
    w, local, states = oracle.w0, algorithm.local, []
    lam = oracle.shares if algorithm.by_samples else np.full(oracle.n, 1 / oracle.n)
    a = np.array([sum(local.momentum**s for s in range(local.steps - k)) for k in range(local.steps)])
    for played in rounds:
        clients = who(played, "train")
        if clients:
            directions = {}
            for i in clients:
                visited = (w, *path_of(oracle, i, w, local)[:-1])
                directions[i] = a @ [oracle.gradient(i, u) + local.weight_decay * u for u in visited] / a.sum()
            w = w - local.lr * a.sum() * mean({i: lam[i] for i in clients}, directions)
        states.append({"w": w})
    return states


def fedprox(algorithm, oracle, rounds):
    return averaging(algorithm, oracle, rounds, prox=algorithm.mu)


def deltafl(algorithm, oracle, rounds):
    """Select the clients with the largest losses until 1 − θ of the weight of the reporting clients is reached."""

    def tail(oracle, w, lam, reporters):
        chosen, held = [], 0.0
        for i in sorted(reporters, key=lambda i: -oracle.loss(i, w)):
            if held >= (1 - algorithm.theta) * lam[reporters].sum() - 1e-12:
                break
            chosen.append(i)
            held += lam[i]
        return chosen

    return averaging(algorithm, oracle, rounds, tail=tail)


def term(algorithm, oracle, rounds):
    """Return the mean of the models, weighted by p_i e^{t·f_i} with the losses before training, normalised over the
    cohort.
    """
    w, states = oracle.w0, []
    p = oracle.shares if algorithm.by_samples else np.full(oracle.n, 1 / oracle.n)
    for played in rounds:
        clients = who(played, "train")
        if clients:
            weights = {i: p[i] * np.exp(algorithm.tilt * oracle.loss(i, w)) for i in clients}
            w = mean(weights, {i: path_of(oracle, i, w, algorithm.local)[-1] for i in clients})
        states.append({"w": w})
    return states


def propfair(algorithm, oracle, rounds):
    """Return the mean after clients' SGD on −log(1 − ℓ/M), or on ℓ/ε if M − ℓ < ε, as in FairFL's algs/algorithms.py.

    The server's rule is the same only for one local step without momentum.
    """
    w, states, local = oracle.w0, [], algorithm.local
    p = oracle.shares if algorithm.by_samples else np.full(oracle.n, 1 / oracle.n)
    for played in rounds:
        clients, models = who(played, "train"), {}
        for i in clients:
            left = algorithm.baseline - oracle.loss(i, w)
            slope = 1 / algorithm.epsilon if left < algorithm.epsilon else 1 / left
            models[i] = w + slope * (path_of(oracle, i, w, local)[-1] - w)
        if clients:
            w = mean({i: p[i] for i in clients}, models)
        states.append({"w": w})
    return states


def quadratic(P, q, low, high):
    """Return argmin ½xᵀPx + qᵀx over Σx = 1 and bounds, by trying every set of weights at their bounds."""
    best, n = (np.inf, None), len(q)
    for at in itertools.product((None, low, high), repeat=n):
        free = [i for i in range(n) if at[i] is None]
        x = np.array([0.0 if a is None else a for a in at])
        if free:
            m = len(free)
            system = np.block([[P[np.ix_(free, free)], np.ones((m, 1))], [np.ones((1, m)), np.zeros((1, 1))]])
            right = np.append(-q[free] - P[free] @ x, 1 - x.sum())
            x[free] = np.linalg.lstsq(system, right, rcond=None)[0][:m]
        if abs(x.sum() - 1) < 1e-9 and (x >= low - 1e-11).all() and (x <= high + 1e-11).all():
            best = min(best, (0.5 * x @ P @ x + q @ x, tuple(x)))
    return np.array(best[1])


def fedmgda_plus(algorithm, oracle, rounds):
    """w ← w − η Σ λ_i g_i/‖g_i‖, λ the shortest combination within ε of 1/k, as in solve_centered_w of FairFL."""
    w, states = oracle.w0, []
    for played in rounds:
        clients = who(played, "train")
        if clients:
            g = np.array([w - path_of(oracle, i, w, algorithm.local)[-1] for i in clients])
            lengths, k = np.sqrt((g**2).sum(1)), len(clients)
            g = g / lengths[:, None]
            bounds = max(0.0, 1 / k - algorithm.epsilon), min(1.0, 1 / k + algorithm.epsilon)
            eta = lengths.mean() if algorithm.server_lr is None else algorithm.server_lr
            w = w - eta * quadratic(g @ g.T, np.zeros(k), *bounds) @ g
        states.append({"w": w})
    return states


CDF = {
    "weibull": lambda x: 1 - np.exp(-(x**2)),
    "exponential": lambda x: 1 - np.exp(-x),
    "frechet": lambda x: np.exp(-1 / x),
    "normal": lambda x: np.array([0.5 * (1 + math.erf((v - 1) / 2**0.5)) for v in x]),
    "gumbel": lambda x: np.exp(-np.exp(-(x - 1))),
    "logistic": lambda x: 1 / (1 + np.exp(-(x - 1))),
}


def aaggff_s(algorithm, oracle, rounds):
    """Follow the cross-silo branch of AaggffServer.update; clients without a loss get the mean response."""
    n = oracle.n
    w, p, G, H, states = oracle.w0, np.full(n, 1 / n), np.zeros(n), 4.0 * np.eye(n), []
    for played in rounds:
        reporters, clients = who(played, "losses"), who(played, "train")
        if clients:
            losses = np.array([oracle.loss(i, w) for i in reporters])
            own = CDF[algorithm.response](losses / losses.mean()) / n
            r = np.full(n, own.mean())
            r[reporters] = own
            g = -r / (1 + p @ r)
            G, H = G + g, H + np.outer(g, g)
            p = quadratic(4.0 * np.eye(n) + n / 4 * H, G, 0.0, 1.0)
            w = mean({i: p[i] for i in clients}, {i: path_of(oracle, i, w, algorithm.local)[-1] for i in clients})
        states.append({"w": w, "lam": p})
    return states


def scaffold(algorithm, oracle, rounds):
    """Set c_i to the mean local gradient; move x by η_g times the mean update, and c by |S|/N times its mean change.

    With momentum β, a gradient K − t steps before the end has weight 1 + β + … + β^(K−t).
    """
    x, controls, local, states = oracle.w0, np.zeros((oracle.n, len(oracle.w0))), algorithm.local, []
    c = np.zeros_like(x)
    for played in rounds:
        S = who(played, "train")
        paths = {i: path_of(oracle, i, x, local, shift=c - controls[i]) for i in S}
        y = {i: path[-1] for i, path in paths.items()}
        weights = np.array([sum(local.momentum**k for k in range(local.steps - t)) for t in range(local.steps)])
        new = {}
        for i, path in paths.items():
            gradients = [oracle.gradient(i, u) + local.weight_decay * u for u in (x, *path[:-1])]
            new[i] = weights @ gradients / weights.sum()
        if S:
            c = c + len(S) / oracle.n * np.mean([new[i] - controls[i] for i in S], axis=0)
            x = x + algorithm.server_lr * np.mean([y[i] - x for i in S], axis=0)
        for i in S:
            controls[i] = new[i]
        states.append({"w": x, "c": c, "c_i": controls.copy()})
    return states


def feddyn(algorithm, oracle, rounds):
    """h_i ← h_i − μ(w_i − w̄); w̄ ← mean of the w_i − c/μ, c = mean of all h_i."""
    w, h, local, states = oracle.w0, np.zeros((oracle.n, len(oracle.w0))), algorithm.local, []
    mu = algorithm.mu
    for played in rounds:
        clients = who(played, "train")
        models = {i: path_of(oracle, i, w, local, shift=-h[i], prox=mu)[-1] for i in clients}
        for i in clients:
            h[i] -= mu * (models[i] - w)
        if clients:
            w = np.mean([models[i] for i in clients], axis=0) - h.mean(axis=0) / mu
        states.append({"w": w, "h": h.copy(), "c": h.mean(axis=0)})
    return states


def qfedavg(algorithm, oracle, rounds):
    """w ← w − Σ_k F_k^q·Δw_k / Σ_k (q·F_k^{q−1}·‖Δw_k‖² + L·F_k^q), Δw_k = L(w − w_k), L = 1/η."""
    w, q, L, states = oracle.w0, algorithm.q, 1 / algorithm.local.lr, []
    for played in rounds:
        top, bottom = 0.0, 0.0
        for k in who(played, "train"):
            F, dw = oracle.loss(k, w), L * (w - path_of(oracle, k, w, algorithm.local)[-1])
            top = top + F**q * dw
            bottom += q * F ** (q - 1) * (dw @ dw) + L * F**q
        w = w - top / bottom if bottom else w
        states.append({"w": w})
    return states


def unbiased(oracle, w, reporters, centred=False):
    """v_i = (N/k)·f_i(w) for the k reporting clients; if centred, (N−1)/(k−1)·(f_i(w) − their mean), if k > 1."""
    v, losses = np.zeros(oracle.n), {i: oracle.loss(i, w) for i in reporters}
    centred = centred and len(losses) > 1
    centre = sum(losses.values()) / len(losses) if centred else 0.0
    factor = (oracle.n - 1) / (len(losses) - 1) if centred else oracle.n / len(losses)
    for i, loss in losses.items():
        v[i] = factor * (loss - centre)
    return v


def afl(algorithm, oracle, rounds):
    """Update w and λ from the same (w, λ), or λ with the losses after w's step."""
    w, lam, states = oracle.w0, start(algorithm, oracle), []
    for played in rounds:
        clients, reporters = who(played, "train"), who(played, "losses")
        if clients:
            models = {i: path_of(oracle, i, w, algorithm.local)[-1] for i in clients}
            after = mean({i: lam[i] for i in clients}, models)
            v = unbiased(oracle, after if algorithm.dual_after else w, reporters)
            w = after
            if reporters:
                lam = moved(algorithm.ambiguity, lam, v, algorithm.local.steps * algorithm.gamma)
        states.append({"w": w, "lam": lam})
    return states


def primal_dual(
    algorithm, oracle, rounds, *, mu=None, corrected=lambda h, lam: 0.0, at_start=False, dual=moved, centred=False
):
    """Run DRFA and related algorithms. w is the mean over the draws minus c/μ; λ moves by the losses at the snapshot.

    Args:
        mu: weight of the penalty; None = no drift terms.
        corrected: c of the drift terms and λ.
        at_start: λ moves by γ and the losses at the round's first model, not by τγ and those at the snapshot.
        dual: the dual update.
        centred: whether the mean of the reports is subtracted first.
    """
    w, lam, local, states = oracle.w0, start(algorithm, oracle), algorithm.local, []
    h = np.zeros((oracle.n, len(w)))
    for played in rounds:
        clients, (call,) = who(played, "train"), calls_of(played, "train")
        counts = dict(zip(played.cohort.clients.tolist(), played.cohort.counts.tolist(), strict=True))
        if not clients:
            states.append({"w": w, "lam": lam})
            continue
        paths = {i: path_of(oracle, i, w, local, shift=-h[i], prox=mu or 0.0) for i in clients}

        def global_model(t, w=w, h=h, lam=lam, counts=counts, clients=clients, paths=paths):
            model = mean({i: counts[i] for i in clients}, {i: paths[i][t - 1] for i in clients})
            if mu is None:
                return model, h
            h = h.copy()
            for i in clients:
                h[i] -= mu * (paths[i][t - 1] - w)
            return model - corrected(h, lam) / mu, h

        at, step = (w, 1) if at_start else (global_model(call.snapshot)[0], local.steps)
        w, h = global_model(local.steps)
        if reporters := who(played, "losses"):
            v = unbiased(oracle, at, reporters, centred)
            lam = dual(algorithm.ambiguity, lam, v, step * algorithm.gamma)
        states.append({"w": w, "lam": lam} | ({} if mu is None else {"h": h}))
    return states


def drfa(algorithm, oracle, rounds):
    return primal_dual(algorithm, oracle, rounds, centred=algorithm.centred)


def along_gradient(ambiguity, lam, v, step):
    """Move λ along the gradient of the penalised objective, then project onto the simplex (DRFA, §5.2)."""
    if isinstance(ambiguity, ChiSquare):
        return bisection(lam + step * (v - ambiguity.rho * (len(lam) * lam - 1)))
    return moved(ambiguity, lam, v, step)


def drfaga(algorithm, oracle, rounds):
    return primal_dual(algorithm, oracle, rounds, at_start=True, dual=along_gradient)


def drdm(algorithm, oracle, rounds):
    options = {"mu": algorithm.mu, "corrected": lambda h, lam: h.mean(axis=0)}
    return primal_dual(algorithm, oracle, rounds, centred=algorithm.centred, **options)


def dual_drdm(algorithm, oracle, rounds):
    options = {"mu": algorithm.mu, "corrected": lambda h, lam: lam @ h}
    return primal_dual(algorithm, oracle, rounds, centred=algorithm.centred, **options)


def scaffpd(algorithm, oracle, rounds):
    """Run SCAFF-PD, Algorithms 1 and 2. A client that has never reported has the mean of the reported losses.

    With μ > 0 the steps follow Algorithm 2's schedule, in which θ = 1/√(1 + μ·primal step) rescales them.
    """
    x, lam, local, states = oracle.w0, start(algorithm, oracle), algorithm.local, []
    L, g, before = {}, {}, None
    lr, sigma, theta = local.lr, algorithm.sigma, 1.0 if algorithm.mu else algorithm.theta
    primal = algorithm.server_lr * local.lr * local.steps
    for played in rounds:
        for i in who(played, "gradients"):
            L[i], g[i] = oracle.loss(i, x), oracle.gradient(i, x)
        losses = np.array([L.get(i, np.mean(list(L.values()))) for i in range(oracle.n)])
        before = losses if before is None else before
        s = (1 + theta) * losses - theta * before
        lam, before = moved(algorithm.ambiguity, lam, s, sigma), losses
        c = mean({i: lam[i] for i in g}, g)
        du = dict.fromkeys(range(oracle.n), c)
        for i in who(played, "train"):
            path = path_of(oracle, i, x, dataclasses.replace(local, lr=lr), shift=c - g[i])
            du[i] = (x - path[-1]) / (lr * local.steps)
        x = x - primal * sum(lam[i] * du[i] for i in du)
        states.append({"w": x, "lam": lam})
        if algorithm.mu:
            theta = 1 / np.sqrt(1 + algorithm.mu * primal)
            primal, lr, sigma = theta * primal, theta * lr, sigma / theta
    return states


def ditto(algorithm, oracle, rounds):
    """w is FedAvg's. v_i takes as many steps on f_i(v) + λ/2‖v − w‖², and starts at w in the client's first round."""
    w, states, local = oracle.w0, [], algorithm.local
    store = np.zeros((oracle.n, 1 + len(w)))
    for played in rounds:
        clients = who(played, "train")
        for i in clients:
            v = store[i, 1:] if store[i, 0] else w
            store[i] = np.concatenate([[1.0], path_of_ditto(oracle, i, v, w, local, algorithm.lam)])
        if clients:
            models = {i: path_of(oracle, i, w, local)[-1] for i in clients}
            w = mean({i: oracle.shares[i] for i in clients}, models)
        states.append({"w": w, "store": store.copy()})
    return states


def path_of_ditto(oracle, i, v, w, local, lam):
    """Return client i's own model after its steps, without momentum."""
    for _ in range(local.steps):
        v = v - local.lr * (oracle.gradient(i, v) + local.weight_decay * v + lam * (v - w))
    return v


def client_side(algorithm, oracle, rounds, client):
    """Run FedAvg with clients that train by ``client(i, w, stored)``, which returns the model and the stored state."""
    w, states = torch.from_numpy(oracle.w0), []
    store = [None] * oracle.n
    for played in rounds:
        models = {}
        for i in who(played, "train"):
            models[i], store[i] = client(i, w, store[i])
        if models:
            w = mean({i: oracle.shares[i] for i in models}, models)
        states.append({"w": w.numpy(), "store": rows_of_store(store)})
    return states


def rows_of_store(store):
    """Return rows [1, stored], and zeros for clients without stored state."""
    size = max((len(row) for row in store if row is not None), default=0)
    rows = [np.zeros(1 + size) if row is None else np.concatenate([[1.0], row.numpy()]) for row in store]
    return np.stack(rows)


def fedrep(algorithm, oracle, rounds):
    """Take τ steps of the head h_i on the body φ, then steps of the body; only bodies are averaged."""
    local, head = algorithm.local, hidden.HEAD

    def client(i, w, stored):
        u = w.clone()
        if stored is not None:
            u[head] = stored
        for step in range(local.steps):
            g = hidden.gradient(lambda v: hidden.cross_entropy(v, i), u)
            of_head = torch.zeros_like(u)
            of_head[head] = 1
            u = u - local.lr * g * (of_head if step < local.steps - algorithm.body_steps else 1 - of_head)
        body = u.clone()
        body[head] = w[head]
        return body, u[head].clone()

    return client_side(algorithm, oracle, rounds, client)


def fedbn(algorithm, oracle, rounds):
    """FedAvg, except for the BatchNorm layer with its running statistics, which each client keeps."""
    norm, statistics = hidden.NORM, slice(hidden.NORM.stop - 2 * hidden.HIDDEN, hidden.NORM.stop)

    def client(i, w, stored):
        u = w.clone()
        if stored is not None:
            u[norm] = stored
        for _ in range(algorithm.local.steps):
            g = hidden.gradient(lambda v: hidden.normalised_loss(v, i)[0], u)
            running = hidden.normalised_loss(u, i)[1]
            u = u - algorithm.local.lr * g
            u[statistics] = running
        rest = u.clone()
        rest[norm] = w[norm]
        return rest, u[norm].clone()

    return client_side(algorithm, oracle, rounds, client)


def fedlc(algorithm, oracle, rounds):
    """Cross-entropy of the logits minus τ·n_c^(−1/4); the softmax omits classes that a client lacks."""

    def loss(w, i):
        x, y = hidden.rows_of(i)
        logits, counts = hidden.outputs_of(w, x)[1], np.bincount(y.numpy(), minlength=hidden.CLASSES)
        there = [c for c in range(hidden.CLASSES) if counts[c]]
        terms = torch.stack([(logits[:, c] - algorithm.tau * counts[c] ** -0.25).exp() for c in there], 1)
        own = terms[torch.arange(len(y)), torch.tensor([there.index(int(c)) for c in y])]
        return -(own / terms.sum(1)).log().mean()

    def client(i, w, _):
        u = w
        for _ in range(algorithm.local.steps):
            u = u - algorithm.local.lr * hidden.gradient(lambda v: loss(v, i), u)
        return u, None

    return [{"w": state["w"]} for state in client_side(algorithm, oracle, rounds, client)]


def moon(algorithm, oracle, rounds):
    """ℓ_sup + μ·ℓ_con with features of the local, the global and the previous local model."""

    def cosine(a, b):
        return (a * b).sum(1) / (a.square().sum(1).sqrt() * b.square().sum(1).sqrt())

    def loss(u, w, previous, i):
        x, _ = hidden.rows_of(i)
        z, glob, prev = (hidden.outputs_of(v, x)[0] for v in (u, w, previous))
        near = (cosine(z, glob) / algorithm.temperature).exp()
        far = (cosine(z, prev) / algorithm.temperature).exp()
        return hidden.cross_entropy(u, i) - algorithm.mu * (near / (near + far)).log().mean()

    def client(i, w, previous):
        u, previous = w, w if previous is None else previous
        for _ in range(algorithm.local.steps):
            u = u - algorithm.local.lr * hidden.gradient(lambda v, p=previous: loss(v, w, p, i), u)
        return u, u

    return client_side(algorithm, oracle, rounds, client)


def mime(algorithm, oracle, rounds):
    """Step along (1 − β)(∇f_i(y) − ∇f_i(x) + c) + βm, where c is the cohort's mean gradient; then update m with c."""
    x, m, states, beta = oracle.w0, np.zeros_like(oracle.w0), [], algorithm.beta
    for played in rounds:
        asked, answered = who(played, "gradients"), who(played, "train")
        if asked and answered:
            c = mean({i: oracle.shares[i] for i in asked}, {i: oracle.gradient(i, x) for i in asked})
            models = {}
            for i in answered:
                y = x
                for _ in range(algorithm.local.steps):
                    direction = (1 - beta) * (oracle.gradient(i, y) - oracle.gradient(i, x) + c) + beta * m
                    y = y - algorithm.local.lr * direction
                models[i] = y
            x, m = mean({i: oracle.shares[i] for i in answered}, models), beta * m + (1 - beta) * c
        states.append({"w": x, "shared": m})
    return states


def fgdro_kl_adam(algorithm, oracle, rounds):
    """Algorithm 3 of the paper, except that the first term of u_i and of v is their first value."""
    a, n = algorithm, oracle.n
    w, u, v, m, q, states = oracle.w0, [None] * n, None, np.zeros_like(oracle.w0), np.zeros_like(oracle.w0), []
    for played in rounds:
        ends = {}
        for i in who(played, "train"):
            w_i, v_i, m_i, q_i = w, v, m, q
            for _ in range(a.local.steps):
                loss = oracle.loss(i, w_i)
                u[i] = loss if u[i] is None else (1 - a.beta1) * u[i] + a.beta1 * loss
                g = math.exp(u[i] / a.temperature)
                v_i = g if v_i is None else (1 - a.beta2) * v_i + a.beta2 * g
                h = g / v_i * oracle.gradient(i, w_i)
                m_i = (1 - a.beta3) * m_i + a.beta3 * h
                q_i = (1 - a.beta4) * q_i + a.beta4 * h**2
                w_i = w_i - a.local.lr * (m_i / (np.sqrt(q_i) + a.epsilon) + a.local.weight_decay * w_i)
            ends[i] = w_i, v_i, m_i, q_i
        if ends:
            w, v, m, q = (np.mean([end[j] for end in ends.values()], axis=0) for j in range(4))
        store = np.array([[0.0, 0.0, 0.0] if x is None else [1.0, x, 1.0] for x in u])
        shared = np.concatenate([[0.0, 0.0] if v is None else [math.log(v), 1.0], m, q])
        states.append({"w": w, "store": store, "shared": shared})
    return states
