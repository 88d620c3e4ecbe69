"""Built-in models, and losses that torch does not have."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import prod

import torch
from torch import Tensor, nn

from drfl.core import checks
from drfl.core.errors import InputError
from drfl.task.batch_norm import with_federated_batch_norm as with_federated_batch_norm


def linear(shape: Sequence[int], classes: int) -> nn.Module:
    """Create one linear layer on the flattened input: multinomial logistic regression (DRDM, §IV.A.3; DRFA, §6)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes))


def mlp(shape: Sequence[int], classes: int, hidden: Sequence[int] = (128,)) -> nn.Module:
    """Create a fully connected network with ReLU and hidden layers of the given widths."""
    widths = [prod(shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))


def cnn(shape: Sequence[int], classes: int) -> nn.Module:
    """Create DRDM's convolutional network for Kuzushiji-MNIST (DRDM, §IV.A.3).

    The layers are a 3×3 convolution to 16 channels, 2×2 max-pooling, a 3×3 convolution to 32 channels, 2×2 max-pooling,
    500 units with ReLU, and the output layer. The convolutions are padded, so that 28×28 images give the paper's 32×7×7
    features. As in the paper, there is no ReLU after them.

    Args:
        shape: Shape of an input, (channels, height, width), with height and width at least 4.
        classes: Number of outputs.

    Raises:
        InputError: If the inputs do not have this shape.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise InputError(
            f"the CNN needs inputs (channels, height ≥ 4, width ≥ 4), got {tuple(shape)}. Use 'mlp', or 'lstm' for "
            "texts.",
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
    """Predict the next token of a text with a token embedding, LSTM layers and a linear layer on the last state.

    Args:
        vocabulary: V, the number of tokens and of outputs.
        embedding: Dimension of the embedding.
        hidden: Dimension of a layer's state.
        layers: Number of LSTM layers.
    """

    def __init__(self, vocabulary: int, embedding: int = 8, hidden: int = 64, layers: int = 1) -> None:
        super().__init__()
        self.arguments = {"vocabulary": vocabulary, "embedding": embedding, "hidden": hidden, "layers": layers}
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Compute scores (B, V) of the next token for texts (B, T) of tokens in 0..V-1."""
        states, _ = self.recurrent(self.embedding(tokens))
        # Only the last state is used, because the model predicts one token per window.
        return self.output(states[:, -1])


def lstm(shape: Sequence[int], classes: int) -> nn.Module:
    """Create a small :class:`LSTM`. LEAF's model for Shakespeare is larger, with two layers of 256 units.

    Args:
        shape: Shape of an input, (T,) tokens.
        classes: V, the size of the vocabulary, because the model predicts a token.

    Raises:
        InputError: If the inputs are not texts.
    """
    if len(shape) != 1:
        raise InputError(
            f"the LSTM needs texts (tokens,), such as 'shakespeare', got inputs {tuple(shape)}. Use 'cnn'.",
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
"""All built-in models by name, as functions of (shape of an input, number of classes) that return a module."""


def without_batch_norm(model: nn.Module, groups: int = 32) -> nn.Module:
    """Copy a model with every BatchNorm replaced by GroupNorm, as is usual in federated learning (Hsieh et al. 2020).

    Weights and biases remain. Running statistics are dropped, so a pretrained model needs fine-tuning. A layer of C
    channels gets the largest number of groups that divides C and is at most ``groups`` and C/2. Groups of a single
    channel would make a vector of features constant.

    Args:
        model: The model, which does not change.
        groups: Maximum number of groups per layer. Wu and He (2018) use 32.

    Raises:
        InputError: If ``groups`` is not a positive integer, or a lazy layer does not know its channels yet.
    """
    checks.integer("groups", groups)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and not layer.num_features:
            label = f"{name or 'the model'} ({type(layer).__name__})"
            raise InputError(
                f"{label} does not know its channels yet. Call the model once on a batch of inputs.",
                code="unsupported-model",
                field="model",
            )
    model = copy.deepcopy(model)
    if isinstance(model, nn.modules.batchnorm._BatchNorm):
        return _group_norm(model, groups)
    for layer in list(model.modules()):
        for name, child in layer._modules.items():  # named_children() omits the second place of a layer
            if isinstance(child, nn.modules.batchnorm._BatchNorm):
                setattr(layer, name, _group_norm(child, groups))
    return model


def _group_norm(norm: nn.modules.batchnorm._BatchNorm, groups: int) -> nn.GroupNorm:
    channels = norm.num_features
    most = max(1, min(groups, channels // 2))
    # Use the largest number of groups that divides the channels into groups of at least two, if possible. In a group of
    # one number, normalisation gives 0.
    layer = nn.GroupNorm(max(g for g in range(1, most + 1) if channels % g == 0), channels, norm.eps, norm.affine)
    if norm.affine:
        layer.weight, layer.bias = norm.weight, norm.bias  # Keep the copy's types and requires_grad.
    return layer.train(norm.training)


def half_squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute ½‖o − e_y‖² per sample: half the squared error against the one-hot label, summed over classes.

    With the factor ½, the gradient with respect to the outputs is o − e_y. torch's ``MSELoss`` on one-hot labels is
    larger by the factor 2/C, because it is the mean over the C classes; the step size compensates for that. SCAFF-PD
    uses this loss for classification (§F.1).

    Args:
        outputs: Floating-point outputs (B, C).
        targets: Labels in 0..C-1, int64 (B,).

    Returns:
        Losses (B,), of the outputs' type.
    """
    # torch's one_hot reads the values of the labels, which is not possible inside vmap.
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
"""All built-in losses by name."""

CLASS_LOSSES = ("cross-entropy", "squared")
"""The built-in losses whose targets are classes. The targets of the others have the shape of the outputs."""
