"""Test that digests of tensors depend on content, type and shape, and that large tensors are hashed once."""

from __future__ import annotations

import hashlib

import torch

from drfl.core import hashing
from drfl.core.hashing import digest_of

LARGE = hashing._LARGE // 4 + 1


def test_equal_tensors_have_equal_digests_and_others_do_not():
    a = torch.arange(6.0)
    assert digest_of([a]) == digest_of([a.clone()])
    others = [a.double(), a.view(2, 3), a + 1, a[:5]]
    assert len({digest_of([t]) for t in [a, *others]}) == 5
    assert digest_of([a]) != digest_of([a], "text")
    assert digest_of([a, a]) != digest_of([a])


def test_every_type_of_numbers_has_a_digest():
    values = torch.tensor([0.0, 1.0, 2.0])
    types = (torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.uint8)
    digests = {digest_of([values.to(kind)]) for kind in types}
    assert len(digests) == len(types)
    assert digest_of([values.bfloat16()]) != digest_of([(values + 1).bfloat16()])
    assert digest_of([values[:0]]) != digest_of([values[:0].bfloat16()])


def test_memory_layout_has_no_effect():
    a = torch.arange(6.0).view(2, 3)
    assert digest_of([a]) == digest_of([a.t().contiguous().t()])


def test_large_tensor_is_hashed_once_until_it_is_written_to(monkeypatch):
    made = []
    real = hashlib.blake2b
    monkeypatch.setattr(hashing.hashlib, "blake2b", lambda *a, **k: made.append(1) or real(*a, **k))
    a = torch.zeros(LARGE)
    first = digest_of([a])
    assert len(made) == 2
    assert digest_of([a]) == first
    assert len(made) == 3
    a[-1] = 1
    changed = digest_of([a])
    assert changed != first
    assert changed == digest_of([a.clone()])
    with torch.inference_mode():
        assert digest_of([torch.zeros(LARGE)]) == first
