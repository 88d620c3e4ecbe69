"""Test the layouts of images: outputs and gradients equal torch's, and only known layers are replaced."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.support.problems import federation
from torch import nn
from torch.func import grad, vmap

from drfl.core.key import Key
from drfl.engine import Loop, Threads
from drfl.engine.image_layers import has_onednn, lay_gradients_channels_last, use_onednn_layout
from drfl.optim.local import LocalSGD
from drfl.task import models

needs_onednn = pytest.mark.skipif(not has_onednn(), reason="without oneDNN or AVX")


def convolutions(channels=16, inplace=False, **options):
    return nn.Sequential(
        nn.Conv2d(2, 16, 3, **options),
        nn.ReLU(inplace),
        nn.MaxPool2d(2),
        nn.Conv2d(16, channels, (3, 5), stride=2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.Flatten(),
    )


def images(dtype=torch.float32):
    """Return mostly empty images, so that many maxima are ties."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 2, 17, 19, generator=generator, dtype=dtype)
    return x * (torch.rand(16, 1, 17, 19, generator=generator) < 0.3)


def layouts(model, x):
    """Return whether each convolution and pooling used oneDNN's layout."""
    seen, taken_off = [], []

    def note(output):
        seen.append((output[0] if isinstance(output, tuple) else output).is_mkldnn)

    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d):
            taken_off.append(layer.register_forward_hook(lambda layer, inputs, output: note(output)))
    model(x)
    for handle in taken_off:
        handle.remove()
    return seen


@needs_onednn
@pytest.mark.parametrize("inplace", [False, True])
def test_outputs_and_gradients_equal_torch(inplace):
    plain = convolutions(inplace=inplace, padding=1)
    model, x = copy.deepcopy(plain), images()
    use_onednn_layout(model)
    lay_gradients_channels_last(model)
    assert layouts(model, x) == [True] * 4
    outputs = [m(x) for m in (plain, model)]
    torch.testing.assert_close(*outputs)
    weights = torch.randn(outputs[0].shape)
    a, b = (torch.autograd.grad(o, list(m.parameters()), weights) for o, m in zip(outputs, (plain, model), strict=True))
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(plain(x), model(x))


def hooked(model):
    model[0].register_forward_hook(lambda *_: None)
    return model


def own_layer(model):
    model[2] = type("Pool", (nn.MaxPool2d,), {})(2)
    return model


def pooled(**options):
    return nn.Sequential(*convolutions()[:2], nn.MaxPool2d(2, **options))


OTHERS = {
    "channels that would be padded": lambda: convolutions(20)[:5],
    "groups": lambda: convolutions(groups=2),
    "padding by name": lambda: convolutions(padding="same"),
    "reflected": lambda: convolutions(padding=1, padding_mode="reflect"),
    "hooks": lambda: hooked(convolutions()),
    "a subclass": lambda: own_layer(convolutions()),
    "part of a window": lambda: pooled(ceil_mode=True),
    "windows with gaps": lambda: pooled(dilation=2),
    "indices": lambda: pooled(return_indices=True),
    "no pooling": lambda: nn.Sequential(nn.Conv2d(2, 16, 3), nn.ReLU()),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_layers_are_left_to_torch(other):
    model = OTHERS[other]()
    use_onednn_layout(model)
    # The first convolution decides; with 20 channels it is the second.
    assert layouts(model, images())[-1] is False


def test_other_inputs_are_left_to_torch():
    model = convolutions()
    use_onednn_layout(model)
    assert not any(layouts(model, images()[:8]))
    assert not any(layouts(model, images().requires_grad_()))
    with torch.autocast("cpu", torch.bfloat16):
        assert not any(layouts(model, images()))
    torch.testing.assert_close(vmap(model)(images()[None])[0], model(images()))
    assert not any(layouts(model.double(), images(torch.float64)))


def test_pooling_receives_channels_last_gradients():
    plain = nn.MaxPool2d(2)
    pool = copy.deepcopy(plain)
    lay_gradients_channels_last(pool)
    x = images().to(memory_format=torch.channels_last).requires_grad_()
    for of in (plain, pool):
        outputs, found = of(x), []
        outputs.grad_fn.register_prehook(lambda g, found=found: found.append(g[0]))
        (gradient,) = torch.autograd.grad(outputs.contiguous().flatten(1).square().sum(), x)
        assert found[0].is_contiguous(memory_format=torch.channels_last) == (of is pool)
        if of is plain:
            expected = gradient
    assert torch.equal(gradient, expected)


def test_other_pooling_layers_use_the_hook():
    pool, x = nn.MaxPool2d(2), images().requires_grad_()
    expected = pool(x)
    lay_gradients_channels_last(pool)
    many = x.detach().to(memory_format=torch.channels_last)[None]
    assert vmap(grad(lambda x: pool(x).sum()))(many).sum() == expected.numel()
    pool.return_indices = True
    assert torch.equal(pool(x)[0], expected)
    pool.return_indices = False
    outputs = pool(x[0])
    assert torch.autograd.grad(outputs.sum(), x)[0][0].sum() == outputs.numel()


@needs_onednn
def test_engines_agree_on_large_images():
    ends = []
    for engine in (Loop(), Threads(2)):
        fed = federation((9, 20), engine=engine, model=models.cnn, shape=(1, 28, 28), dtype=torch.float32)
        ends.append(fed.train(torch.arange(2), fed.w0, LocalSGD(steps=3, lr=0.01, batch=8), Key(1), prox=0.1).w)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-4)
