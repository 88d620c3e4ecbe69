"""Test dropout and augmentation: equal in every engine, independent of the cohort, and only in local steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tests.support.marks import crossed, long_except
from tests.support.problems import pools
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.core.key import Key
from drfl.engine import Loop, Simulation, Stacked, Threads
from drfl.optim.local_optimizers import SAM
from drfl.task.augmentations import Chain, Crop, Flip, GaussianNoise
from drfl.task.training_noise import KeyedDropout, Uniform, draw_seeds, with_keyed_dropout

SHAPE, SIZES = (2, 6, 6), (3, 9, 33, 64)
SEEDS = torch.arange(4000) * 7919


class Twice(nn.Module):
    """One layer that is called twice, as in many models."""

    def __init__(self):
        super().__init__()
        self.drop, self.a, self.b = nn.Dropout(0.4), nn.Linear(72, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.b(self.drop(self.a(self.drop(x.flatten(1)))))


def channels():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.Dropout2d(0.5), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(64, 3)
    )


def linear():
    return nn.Sequential(nn.Flatten(), nn.Linear(72, 3))


TASKS = {
    "dropout, a layer twice": (Twice, None),
    "dropout of channels": (channels, None),
    "augmented": (linear, Chain(Flip(), Crop(1), GaussianNoise(0.3))),
    "both": (channels, Crop(2)),
}
SOLVERS = {
    "minibatches": {"batch": 8},
    "all samples": {"batch": None, "momentum": 0.5},
    "epochs": {"epochs": 2, "batch": 16},
    "sam": {"batch": 8, "optimizer": SAM(0.1)},
}


def simulation(model=Twice, augment=None, engine=None, **options):
    with Key(0).torch_scope():
        task = drfl.Task(model().double(), augment=augment)
    return Simulation(pools(SIZES, shape=SHAPE), task, engine=engine or Loop(), **options)


def trained(fed, cohort=(0, 1, 2, 3), **solver):
    local = drfl.LocalSGD(lr=0.1, **({} if "epochs" in solver else {"steps": 3}), **solver)
    return fed.train(torch.tensor(cohort), fed.w0, local, Key(5)).w


@pytest.mark.long
@pytest.mark.parametrize(
    ("model", "augment", "solver"),
    crossed(
        long_except(["both"], TASKS.values(), TASKS), long_except(["minibatches", "sam"], SOLVERS.values(), SOLVERS)
    ),
)
def test_engines_agree(model, augment, solver, caplog):
    oracle = trained(simulation(model, augment), **solver)
    quiet = trained(simulation(lambda: model().eval(), None), **solver)
    assert (oracle - quiet).norm(dim=1).min() > 1e-3
    for engine in (Stacked(), Stacked(0.002), Threads(3)):
        fed = simulation(model, augment, engine)
        torch.testing.assert_close(trained(fed, **solver), oracle, rtol=0, atol=1e-10)
        torch.testing.assert_close(trained(fed, **solver), oracle, rtol=0, atol=1e-10)  # the second call is traced
    assert caplog.messages == []  # no warning about an untraceable step


def test_dropout_masks_do_not_depend_on_the_cohort(engine):
    fed = simulation(engine=engine)
    together = trained(fed, batch=16)
    for i in (0, 2):
        torch.testing.assert_close(trained(fed, (i,), batch=16)[0], together[i], rtol=0, atol=1e-10)


def test_reports_gradients_and_evaluations_have_no_noise(engine):
    noisy, quiet = simulation(channels, Flip(1.0), engine), simulation(lambda: channels().eval(), None, engine)
    everybody = torch.arange(4)
    trained(noisy)  # training leaves no noise in later requests
    for fed in (noisy, quiet):
        fed.found = (
            fed.evaluate(fed.w0).loss, fed.losses(everybody, fed.w0, Key(1)).values,
            fed.gradients(everybody, fed.w0, Key(1)).values,
        )  # fmt: skip
    for a, b in zip(noisy.found, quiet.found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_masks_differ_by_round_and_step_and_are_reproducible():
    fed = simulation()
    local = drfl.LocalSGD(steps=1, lr=0.1, batch=None)
    first, again, other = (fed.train(torch.tensor([3]), fed.w0, local, Key(k)).w for k in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    runs = [drfl.run(drfl.DRFA(m=2, local=local), simulation(engine=Stacked()), rounds=3).model for _ in range(2)]
    assert torch.equal(*runs)


def test_users_model_is_unchanged_and_takes_trained_weights():
    model = Twice()
    task = drfl.Task(model)
    assert isinstance(model.drop, nn.Dropout)
    assert isinstance(task.model.drop, KeyedDropout)
    drfl.Layout.of(model).load(model, task.w0 + 1)
    assert with_keyed_dropout(model.eval()) is model


def test_layer_in_two_places_draws_different_numbers_in_each(engine):
    def model():
        drop = nn.Dropout(0.5)
        return nn.Sequential(nn.Flatten(), drop, nn.Linear(72, 8), drop, nn.Linear(8, 3))

    def separate():
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, 8), nn.Dropout(0.5), nn.Linear(8, 3))

    first, second = (layer for layer in drfl.Task(model()).model if isinstance(layer, KeyedDropout))
    first.seeds = second.seeds = SEEDS
    x = torch.ones(4000, 8)
    assert not torch.equal(first(x), second(x))
    assert torch.equal(trained(simulation(model, engine=engine)), trained(simulation(separate, engine=engine)))


@pytest.mark.long
def test_frozen_layers_with_dropout_are_not_precomputed():
    def model():
        front = nn.Linear(72, 5).requires_grad_(False)
        return nn.Sequential(nn.Flatten(), front, nn.Dropout(0.5), nn.Linear(5, 3))

    oracle = trained(simulation(model))
    torch.testing.assert_close(trained(simulation(model, engine=Stacked())), oracle, rtol=0, atol=1e-10)
    assert (oracle - trained(simulation(lambda: model().eval()))).norm() > 1e-3


@pytest.mark.parametrize("stream", [1, 2])
def test_numbers_are_uniform_and_uncorrelated(stream):
    uniform = Uniform(SEEDS, stream)
    a, b = uniform(50).double(), uniform(50).double()
    other = Uniform(SEEDS, stream + 1)(50).double()
    assert 0 <= float(a.min()) < float(a.max()) < 1
    n = a.numel()
    counts = torch.histc(a, 20, 0, 1)
    assert float(((counts - n / 20) ** 2 / (n / 20)).sum()) < 43.8  # χ² with 19 degrees of freedom, p = 0.001
    for x, y in ((a, b), (a, other), (a[1:], a[:-1]), (a[:, 1:], a[:, :-1])):
        r = torch.corrcoef(torch.stack([x.flatten(), y.flatten()]))[0, 1]
        assert abs(float(r)) < 3.5 / x.numel() ** 0.5


def test_dropout_keeps_the_mean():
    layer = KeyedDropout(0.3, 1, channels=False)
    layer.seeds = SEEDS
    out = layer(torch.ones(4000, 20))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float(out.mean()) == pytest.approx(1, abs=4 * (0.3 / 0.7 / out.numel()) ** 0.5)
    whole = KeyedDropout(0.5, 1, channels=True)
    whole.seeds = SEEDS
    assert {len(channel.unique()) for picture in whole(torch.ones(4000, 3, 2, 2))[:50] for channel in picture} == {1}


def test_crops_and_flips_come_from_the_image():
    x = torch.arange(32.0).reshape(2, 1, 4, 4) + 1
    seeds = torch.tensor([3, 4])
    assert torch.equal(Flip(1.0)(x, Uniform(seeds)), x.flip(-1))
    assert torch.equal(Flip(0.0)(x, Uniform(seeds)), x)
    wide = nn.functional.pad(x, [1] * 4)
    places = {tuple((wide[0, :, a : a + 4, b : b + 4]).flatten().tolist()) for a in range(3) for b in range(3)}
    found = {tuple(Crop(1)(x[:1], Uniform(torch.tensor([s]))).flatten().tolist()) for s in range(200)}
    assert found == places
    noise = GaussianNoise(2.0)(torch.zeros(4000, 20), Uniform(SEEDS))
    assert float(noise.std()) == pytest.approx(2, rel=0.02)
    assert abs(float(noise.mean())) < 0.03


def test_seeds_belong_to_a_client():
    whole = draw_seeds([4, 7], 3, torch.tensor([5, 8]), Key(1))
    assert torch.equal(draw_seeds([7], 3, torch.tensor([8]), Key(1))[0], whole[1])
    assert whole[0, :, 5:].eq(0).all()
    assert len(whole[1].unique()) == 24


@pytest.mark.parametrize(
    ("augment", "error"),
    [
        (lambda x, u: x[:, :1], ("wrong-shape", "augment", "torch.float64", "(4, 1, 6, 6)")),
        (lambda x, u: x.float(), ("wrong-shape", "augment", "torch.float32")),
        (lambda x, u: x.nosuch, ("user-code-failed", "augment", "nosuch")),
    ],
)
def test_faulty_augmentation_is_refused_before_training(augment, error):
    with refused(*error):
        simulation(linear, augment)


@pytest.mark.parametrize("make", [lambda: Flip(2), lambda: Crop(0), lambda: GaussianNoise(-1)])
def test_wrong_numbers_are_refused(make):
    with refused("out-of-range"):
        make()


def test_batch_that_is_not_first_is_refused():
    class Turned(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.out = nn.Dropout(0.5), nn.Linear(72, 3)

        def forward(self, x):
            return self.out(self.drop(x.flatten(1).T).T)

    with refused("wrong-shape", None, "(72, 4)", "4 samples"):
        simulation(Turned)


def test_layers_without_keyed_noise_are_refused():
    with refused("unsupported-model", "model", "nn.Dropout"):
        drfl.Task(nn.Sequential(nn.AlphaDropout(0.5), nn.Linear(3, 2)))
    with refused("unsupported-model", "model"):
        simulation(lambda: Functional())


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(72, 3)

    def forward(self, x):
        return self.out(nn.functional.dropout(x.flatten(1), 0.5))


@pytest.mark.long
def test_data_without_floats_are_unchanged(engine):
    data = pools(SIZES, shape=SHAPE)
    whole = replace(data, inputs=data.inputs.long(), test_inputs=data.test_inputs.long())
    fed = Simulation(whole, drfl.Task(linear().double(), augment=Flip()), engine=engine)
    assert fed.train(torch.tensor([3]), fed.w0, drfl.LocalSGD(steps=2, lr=0.1), Key(0)).w.isfinite().all()
