"""The models that come along, and the losses that torch has not."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from drfl.core import checks
from drfl.core.errors import InputError


def linear(shape: Sequence[int], classes: int) -> nn.Module:
    """One linear layer on the flattened input: multinomial logistic regression (DRDM, §IV.A.3, MNIST; DRFA, §6)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Fully connected layers with ReLU between them, of the given hidden widths."""
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """DRDM's network for Kuzushiji-MNIST (DRDM, §IV.A.3).

    3×3 convolution to 16 channels, 2×2 max-pooling, 3×3 convolution to 32 channels, 2×2 max-pooling, 500 units with
    ReLU, output. The convolutions are padded, so that 28×28 images give the paper's 32×7×7 features; as in the paper
    there is no ReLU after them.

    Args:
        shape: (channels, height, width) of an input, height and width at least 4.
        classes: Number of outputs.

    Raises:
        InputError: If the inputs are not such images.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(
            f"the CNN needs inputs (channels, height ≥ 4, width ≥ 4), not {tuple(shape)}: use 'mlp', for texts 'lstm'",
            code="unsupported-data",
            field="model",
        )
    channels, height, width = shape
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), 500),
        nn.ReLU(),
        nn.Linear(500, classes),
    )


class LSTM(nn.Module):
    """What comes after a text: an embedding of its tokens, LSTM layers, and a linear layer on the last state.

    Args:
        vocabulary: V, the number of tokens, and of outputs.
        embedding: Numbers that a token becomes.
        hidden: Numbers of a layer's state.
        layers: LSTM layers on top of each other.
    """

    def __init__(self, vocabulary: int, embedding: int = 8, hidden: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores (B, V) of the tokens that may follow, for texts (B, T) of tokens in 0..V-1."""
        states, _ = self.recurrent(self.embedding(tokens))
        # Only the last state is used: the model predicts one character per window.
        return self.output(states[:, -1])


def lstm(shape: Sequence[int], classes: int) -> nn.Module:
    """A small :class:`LSTM` that predicts a text's next token. LEAF's model for Shakespeare has two layers of 256.

    Args:
        shape: (T,) tokens of an input.
        classes: V, the vocabulary's size: what is predicted is a token.

    Raises:
        InputError: If the inputs are no texts.
    """
    if len(shape) != 1:
        raise InputError(
            f"the LSTM needs texts (tokens,), such as 'shakespeare', not inputs {tuple(shape)}: use 'cnn'",
            code="unsupported-data",
            field="model",
        )
    return LSTM(classes)


MODELS: dict[str, Callable[[Sequence[int], int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "lstm": lstm,
}
"""Every model by the name that the command knows it by: (shape of an input, classes) → module."""


def without_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of a model with GroupNorm in place of every BatchNorm, usual in federated learning (Hsieh et al. 2020).

    Weight and bias stay as they are; running statistics are dropped, so that a pretrained model needs fine-tuning. A
    layer of C channels gets the most groups that divide C, at most ``groups`` and C/2: a group of one channel would
    make a vector of features constant.

    Args:
        model: Left as it is.
        groups: The most groups of a layer (Wu and He 2018 take 32).

    Raises:
        InputError: If ``groups`` is not a whole number from 1 on; a lazy layer does not know its channels yet.
    """
    checks.whole("groups", groups)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not layer.num_features:
            where = f"{name or 'the model'} ({type(layer).__name__})"
            raise InputError(
                f"{where} does not know its channels yet: call the model once before",
                code="unsupported-model",
                field="model",
            )
    model = copy.deepcopy(model)
    if isinstance(model, nn.modules.batchnorm._BatchNorm):
        return _group_norm(model, groups)
    for layer in list(model.modules()):
        for name, child in layer.named_children():
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(layer, name, _group_norm(child, groups))
    return model


def _group_norm(norm: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    """With the affine part of a BatchNorm layer."""
    channels = norm.num_features
    most = max(1, min(groups, channels // 2))
    # The number of groups is the largest that divides the channels into groups of at least two, if possible: in a group
    # of one number, normalisation gives 0.
    made = nn.GroupNorm(max(g for g in range(1, most + 1) if channels % g == 0), channels, norm.eps, norm.affine)
    if norm.affine:
        made.weight, made.bias = norm.weight, norm.bias  # of the copy, with their type and requires_grad
    return made.train(norm.training)


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """½‖o − e_y‖² per sample: squared error against the one-hot label, summed over the classes.

    The half makes the gradient in the outputs o − e_y. torch's ``MSELoss`` on one-hot labels is this times 2/C, as it
    takes the mean over the C classes; the step size makes up for that. Its use for classification is SCAFF-PD's, §F.1.

    Args:
        outputs: (B, C) floating.
        targets: (B,) int64 labels in 0..C-1.

    Returns:
        (B,) losses, of the outputs' type.
    """
    # torch's one_hot looks at the labels' values, which vmap cannot do
    classes = torch.arange(outputs.shape[-1], device=outputs.device)
    labels = (targets.unsqueeze(-1) == classes).to(outputs.dtype)
    return (outputs - labels).square().sum(-1) / 2


LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross-entropy": nn.CrossEntropyLoss(),
    "squared": half_squared_error,
    "binary-cross-entropy": nn.BCEWithLogitsLoss(),
    "mse": nn.MSELoss(),
    "mae": nn.L1Loss(),
    "huber": nn.HuberLoss(),
}
"""Every loss by the name that configurations know it by."""
