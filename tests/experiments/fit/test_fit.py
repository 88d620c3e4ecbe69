"""Test `drfl.fit`: choice, refit, personal models, references."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.support.refusals import refused

import drfl
from drfl.core.errors import DivergedError, DrflError
from drfl.data.model import load_models
from drfl.experiments.fit import fit as fit_module
from drfl.experiments.fit import personal as personal_module
from drfl.experiments.fit.members import PORTFOLIO, Member
from drfl.experiments.fit.personal import GLOBAL, LOCAL, Personalisation, decide

TEST = "worst_accuracy"


def clients(contrary=0, n=150, count=3):
    """Make clients that agree, or of which the last ones disagree on half of the columns."""
    noise = torch.Generator().manual_seed(0)
    parts = {}
    for i in range(count):
        x = torch.randn(n, 4, generator=noise)
        sign = torch.tensor([1.0, 1.0, -1.0, -1.0] if i >= count - contrary else [1.0] * 4)
        parts[f"site{i}"] = (x, (x @ sign + torch.randn(n, generator=noise) / 2 > 0).long())
    return drfl.ClientData.from_arrays(parts)


def task():
    torch.manual_seed(1)
    return drfl.Task(torch.nn.Linear(4, 2))


def fitted(data=None, **options):
    return drfl.fit(
        clients() if data is None else data, task(), **{"budget": 3, "lr": 0.3, "progress": None, **options}
    )


def personal(data, **options) -> Personalisation:
    """Return the clients' models of a fit with personal models."""
    found = fitted(data, personalise=True, **options).personal
    assert found is not None
    return found


@pytest.fixture
def two_members(monkeypatch):
    monkeypatch.setattr(fit_module, "PORTFOLIO", (PORTFOLIO[0], PORTFOLIO[4]))


def test_equal_candidates_leave_the_simplest(monkeypatch):
    monkeypatch.setattr(fit_module, "PORTFOLIO", (PORTFOLIO[0], PORTFOLIO[0]._replace(name="the same")))
    found = fitted()
    assert found.chosen is PORTFOLIO[0]
    assert found.candidates[0].losses.mean.tolist() == found.candidates[1].losses.mean.tolist()
    assert [member["chosen"] for member in found.summary()["members"]] == [True, False]


def test_clearly_better_candidate_is_chosen_and_retrained_on_all_rows(monkeypatch):
    slow = Member("slow", "FedAvg", {"lr": 1e-4})
    monkeypatch.setattr(fit_module, "PORTFOLIO", (slow, PORTFOLIO[0]))
    data = clients()
    found = fitted(data, lr=None)
    assert found.chosen is PORTFOLIO[0]
    assert found.choice.p[1] < 0.05
    fed = drfl.Simulation(data, task())
    alone = drfl.run(drfl.FedAvg(), fed, rounds=3)
    assert torch.allclose(found.model, alone.model, atol=1e-6)
    assert found.result.evaluation.score.tolist() == alone.evaluation.score.tolist()
    assert found.assessment.values.tolist() == alone.evaluation.score.tolist()
    assert drfl.assess(found).to_frame().equals(found.assessment.to_frame())
    assert drfl.assess(found, level=0.5).worst.low > found.assessment.worst.low


def test_test_rows_do_not_influence_the_choice(two_members):
    data = clients()
    other = replace(data, test_targets=1 - data.test_targets)
    one, two = fitted(data), fitted(other)
    assert one.choice.p.tolist()[1:] == two.choice.p.tolist()[1:]
    assert one.model.equal(two.model)
    assert one.result.evaluation.score.sum() > two.result.evaluation.score.sum()


def test_given_validation_rows_are_used_and_trained_on_at_the_end(two_members):
    data = clients()
    split = data.with_validation(0.5)
    found = fitted(split)
    assert found.rows == sum(map(len, split.validation))
    assert found.finished.job.data.sizes.tolist() == data.sizes.tolist()


def test_diverging_candidate_is_excluded_with_a_reason(monkeypatch):
    def fail(self, state, fed, key):
        raise DivergedError("no")

    monkeypatch.setattr(drfl.SCAFFOLD, "round", fail)
    monkeypatch.setattr(fit_module, "PORTFOLIO", (PORTFOLIO[2], PORTFOLIO[0]))
    found = fitted()
    assert found.chosen is PORTFOLIO[0]
    first = found.summary()["members"][0]
    assert first["excluded"].startswith("diverged")
    assert first["p"] is None
    assert TEST not in first


def test_candidate_no_better_than_the_initial_model_is_excluded(monkeypatch):
    worse = Member("worse", "FedAvg", {"lr": 50.0})
    monkeypatch.setattr(fit_module, "PORTFOLIO", (worse, PORTFOLIO[0]))
    first, _ = fitted(budget=6, lr=None).candidates
    assert "initial model" in first.excluded


@pytest.mark.long
def test_candidates_are_not_compared_with_a_model_from_a_file(monkeypatch, tmp_path):
    # FedAvg cannot improve on its own best model, and the other member makes it worse.
    worse = Member("worse", "FedAvg", {"lr": 50.0})
    monkeypatch.setattr(fit_module, "PORTFOLIO", (PORTFOLIO[0], worse))
    first = fitted(budget=60, out=tmp_path / "first")
    found = fitted(init_from=tmp_path / "first")
    assert [candidate.excluded for candidate in found.candidates] == ["", ""]
    assert found.chosen is PORTFOLIO[0]
    assert found.result.history.last.metrics.worst_loss <= first.result.history.last.metrics.worst_loss + 0.05
    monkeypatch.setattr(fit_module, "_try", lambda steps, name, job: None)  # every run diverges
    with refused("no-results", "init_from", kind=DrflError):
        fitted(init_from=tmp_path / "first")


def test_fit_fails_if_no_candidate_remains(monkeypatch):
    monkeypatch.setattr(fit_module, "PORTFOLIO", (Member("wild", "FedAvg", {"lr": 1e30}),))
    with pytest.raises(DrflError) as error:
        fitted()
    assert (error.value.code, error.value.field) == ("no-results", "budget")


def test_diverging_reference_is_omitted(two_members, monkeypatch):
    def refuse(self, state, fed, key):
        raise DivergedError("no")

    monkeypatch.setattr(drfl.Pooled, "round", refuse)
    found = fitted()
    assert found.references["pooled"] is None
    assert found.summary()["references"]["local_only"][TEST] > 0.5


@pytest.mark.long
def test_two_clients_with_one_very_small(two_members):
    data = clients(count=2)
    tiny = replace(data, train=(data.train[0], data.train[1][:1]))
    found = fitted(tiny)
    assert {c.group for c in found.candidates} == {"site0"}  # the other client's only row is also a training row
    small = replace(data, train=(data.train[0], data.train[1][:10]))
    assert {c.group for c in fitted(small).candidates} == {
        "all 2 clients, judged together because they have few validation rows"
    }


def test_client_with_contrary_labels_gets_its_own_model(two_members):
    data = clients(contrary=1)
    shared, own = fitted(data), fitted(data, personalise=True)
    assert shared.personal is None
    assert own.personal is not None
    assert own.personal.used[2] == own.personal.decisions[2] != GLOBAL
    assert own.model.equal(shared.model)
    assert float(own.result.evaluation.score.min()) > float(shared.result.evaluation.score.min()) + 0.2
    assert own.result.history.last.metrics.worst_score == float(own.result.evaluation.score.min())


def test_files_have_the_models_of_all_clients(two_members, monkeypatch, tmp_path):
    monkeypatch.setattr(personal_module, "decide", lambda *args: [(GLOBAL, 0.0), *decide(*args)[1:]])
    data = clients(contrary=1)
    own = fitted(data, personalise=True, out=tmp_path / "a")
    assert own.personal is not None
    assert (own.personal.used[0], own.personal.used[2] == GLOBAL) == (GLOBAL, False)
    module = torch.nn.Linear(4, 2)
    for client in data.names:
        own.result.write_into(module, client=client)
        weights = drfl.load_model(tmp_path / "a", client=client).weights
        assert all(value.equal(weights[name]) for name, value in module.state_dict().items())
    with refused("unknown-name", "client", "site0", "site2"):
        drfl.load_model(tmp_path / "a", client="site3")
    # A fit may give no client a personal model.
    monkeypatch.setattr(personal_module, "decide", lambda *args: [(GLOBAL, 0.0)] * 3)
    fitted(data, personalise=True, out=tmp_path / "b")
    assert load_models(tmp_path / "b", personal=True)[1] == {}
    fitted(data, out=tmp_path / "c")
    with refused("no-personal-models", "personal"):
        load_models(tmp_path / "c", personal=True)


@pytest.mark.long
def test_agreeing_clients_keep_the_global_model(two_members):
    found = fitted(personalise=True, budget=40)
    assert found.personal is not None
    assert set(found.personal.used) == {GLOBAL}
    assert found.result.personal is None


def test_client_gets_the_model_with_the_largest_clear_gain():
    shared, sizes = np.ones(90), [30, 30, 30]
    noise = np.tile([-0.1, 0.1], 15)
    own = np.concatenate([0.5 + noise, 1 + noise, 0.9 + 40 * noise])
    some = np.concatenate([0.7 + noise, 0.9 + noise, 1 + noise])
    decided = decide(shared, {"some": some, LOCAL: own}, sizes)
    assert [name for name, _ in decided] == [LOCAL, "some", GLOBAL]
    assert [gain for _, gain in decided] == pytest.approx([0.5, 0.1, 0])


def test_unconfirmed_personal_model_is_dropped(two_members, monkeypatch):
    made = []

    def contrary(run, fed, alone):
        table = fed.client_table().put(torch.arange(3), run.result.model.expand(3, -1))
        made.append(run)
        sign = 1 if len(made) == 1 else -1  # the final models are the opposite of the chosen ones
        swapped = table.put(
            torch.tensor([2]), sign * torch.tensor([[-4, -4, 4, 4, 4, 4, -4, -4, 0, 0]], dtype=torch.float32)
        )
        return {LOCAL: swapped}

    monkeypatch.setattr(personal_module, "candidates", contrary)
    found = personal(clients(contrary=1))
    assert found.decisions == (GLOBAL, GLOBAL, LOCAL)
    assert found.used == (GLOBAL,) * 3


@pytest.mark.long
def test_regression_uses_its_own_score(two_members):
    data = clients()
    numbers = replace(
        data, targets=data.inputs.sum(1, keepdim=True), test_targets=data.test_inputs.sum(1, keepdim=True)
    )
    found = drfl.fit(numbers, drfl.Task(torch.nn.Linear(4, 1), torch.nn.MSELoss()), budget=6, progress=None)
    assert found.summary()["test"]["worst_rmse"] < 1


def test_same_seed_gives_the_same_fit_and_progress_lines(two_members):
    lines = []
    one, two = fitted(progress=lines.append), fitted()
    assert one.summary() == two.summary()
    ends = [line for line in lines if line.startswith("[")]
    assert len(ends) == 2 + 1 + 2
    assert "left" in ends[0]
    assert "left" not in ends[-1]
    assert len(one.to_frame()) == 2


def test_clients_whose_own_training_diverges_can_fine_tune(two_members, monkeypatch):
    def refuse(self, state, fed, key):
        raise DivergedError("no")

    monkeypatch.setattr(drfl.LocalOnly, "round", refuse)
    found = fitted(clients(contrary=1), personalise=True)
    assert found.references["local_only"] is None
    assert found.personal is not None
    assert LOCAL not in found.personal.decisions
    assert found.personal.used[2].endswith("local steps")


def test_missing_validation_rows_are_refused():
    data = clients(count=2)
    with refused("no-validation", "data"):
        fitted(replace(data, train=tuple(rows[:1] for rows in data.train)))


@pytest.mark.parametrize(
    ("options", "code", "field"),
    [
        ({"budget": 0}, "out-of-range", "budget"),
        ({"resume": True}, "needs-option", "resume"),
        ({"overwrite": True}, "needs-option", "out"),
        ({"cohort": 7}, "out-of-range", "m"),
        ({"batch": "some"}, "invalid-value", "batch"),
        ({"batch": "8"}, "invalid-value", "batch"),
        ({"lr": "0.1"}, "invalid-value", "lr"),
        ({"steps": "5"}, "invalid-value", "steps"),
        ({"cohort": "2"}, "invalid-value", "cohort"),
        ({"engine": "warp"}, "unknown-name", "engine"),
    ],
)
def test_impossible_arguments_are_refused(options, code, field):
    with refused(code, field):
        fitted(**options)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((90, 80, 70), ["all 3 clients, judged together because they have few validation rows"]),
        ((60, 70, 300), ["2 clients with few validation rows, judged together", "site2"]),
        ((300, 310, 320), ["site0", "site1", "site2"]),
    ],
    ids=["one group", "one group and a client", "clients"],
)
def test_reason_names_who_was_judged(monkeypatch, sizes, groups):
    data = clients(n=400)
    data = replace(data, train=tuple(rows[:n] for rows, n in zip(data.train, sizes, strict=True)))
    slow = Member("slow", "FedAvg", {"lr": 1e-4})
    for portfolio in ((slow, PORTFOLIO[0]), (PORTFOLIO[0], slow._replace(parameters={"lr": 1e-3}))):
        monkeypatch.setattr(fit_module, "PORTFOLIO", portfolio)
        found = fitted(data)
        assert found.chosen is PORTFOLIO[0]
        assert list(found.groups) == groups
        assert found.pooled == [group for group in groups if group not in data.names]
        assert {candidate.group for candidate in found.candidates} <= set(groups)
        # "The worst client" is right only if clients are judged one by one.
        assert ("the worst client" in found.reason) == (len(groups) == 3)
        assert ("the worst group of clients" in found.reason) == (len(groups) == 2)
        assert (groups[0] in found.reason) == (len(groups) == 1) or portfolio[0] is slow
    # A smaller loss that is not significant is compared in the same words.
    for p, judged in ((0.01, "significantly"), (0.5, "smaller loss")):
        choice = found.choice._replace(chosen=1, reference=0, p=np.array([np.nan, p]))
        reason = replace(found, choice=choice).reason
        assert judged in reason
        assert all(candidate.group in reason for candidate in found.candidates)


@pytest.mark.long
def test_patients_count_instead_of_rows(two_members):
    data = clients(n=200)
    data = replace(data, test_inputs=data.inputs, test_targets=data.targets, test=data.train)
    rows = torch.arange(len(data.inputs))
    found = fitted(replace(data, patients=rows // 8))
    single = fitted(replace(data, patients=rows))
    assert {c.group for c in found.candidates} == {
        "all 3 clients, judged together because they have few validation patients"
    }
    assert {c.group for c in single.candidates} <= set(data.names)


def test_refused_fit_leaves_no_folder(tmp_path):
    data = clients(count=2)
    with refused("no-validation", "data"):
        fitted(replace(data, train=tuple(rows[:1] for rows in data.train)), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_resuming_with_another_budget_names_it(two_members, tmp_path):
    def stop(line):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitted(budget=30, out=tmp_path / "out", progress=stop, checkpoint_every=1)
    with refused("other-run", "rounds", "30", "6"):
        fitted(budget=6, out=tmp_path / "out", resume=True, checkpoint_every=1)
