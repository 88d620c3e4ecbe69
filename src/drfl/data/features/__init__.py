"""Features of images from a pretrained network, used as inputs in place of the images."""

from __future__ import annotations

from drfl.data.features.backbone import Backbone
from drfl.data.features.featurise import featurise
from drfl.data.features.pretraining import load_backbone
from drfl.data.features.recipe import KINDS, Recipe

__all__ = ["KINDS", "Backbone", "Recipe", "featurise", "load_backbone"]
