"""Test dictionaries and tuples of tensors, packed into rows of numbers and unpacked."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
import torch
from tests.support.refusals import refused
from torch import nn

import drfl
from drfl.task.input_fields import InputFields, fields_of, has_fields

TEXT = {"input_ids": torch.tensor([[5, 2**40], [9, -1]]), "attention_mask": torch.tensor([[True, True], [True, False]])}
MIXED = (torch.tensor([[[0.1], [1 / 3]]] * 2, dtype=torch.float64), torch.tensor([2**24, -(2**24)]), np.uint8([7, 255]))


@pytest.mark.parametrize("x", [TEXT, MIXED, (torch.rand(3),), {"a": np.arange(4.0), "b": [[1], [2], [3], [0]]}])
def test_packing_and_unpacking_are_inverse(x):
    fields = InputFields.of(x)
    rows = fields.pack(x)
    assert rows.shape == (len(rows), fields.width)
    assert rows.is_floating_point() == ("real" in fields.kinds)
    found = fields.unpack(rows)
    assert type(found) is (dict if isinstance(x, dict) else tuple)
    for name in x if isinstance(x, dict) else range(len(x)):
        expected = torch.as_tensor(np.asarray(x[name]))
        assert torch.equal(found[name], expected.to(found[name].dtype))
        assert found[name].is_floating_point() == (expected.is_floating_point() or expected.dtype == torch.uint8)
        assert (found[name].dtype == torch.bool) == (expected.dtype == torch.bool)
    assert InputFields.of_plain(json.loads(json.dumps(asdict(fields)))) == fields


def test_field_names_can_be_in_any_order():
    fields = InputFields.of(TEXT)
    assert torch.equal(fields.pack(dict(reversed(TEXT.items()))), fields.pack(TEXT))


def test_only_dictionaries_and_tuples_of_arrays_have_fields():
    assert has_fields(TEXT)
    assert has_fields(MIXED)
    assert not any(map(has_fields, [(1.0, 2.0), [torch.ones(2)], torch.ones(2), np.ones(2), (), {}]))


@pytest.mark.parametrize(
    ("x", "quoted"),
    [
        ({"input_ids": TEXT["input_ids"]}, "input_ids"),
        ({**TEXT, "token_type_ids": TEXT["input_ids"]}, "token_type_ids"),
        ({**TEXT, "input_ids": TEXT["input_ids"].double()}, "real"),
        ({**TEXT, "input_ids": TEXT["input_ids"][:, :1]}, "(1,)"),
        (tuple(TEXT.values()), "0"),
        (TEXT["input_ids"], "Tensor"),
        ({**TEXT, "input_ids": TEXT["input_ids"][:1]}, "attention_mask"),
        ({**TEXT, "input_ids": torch.tensor(3)}, "input_ids"),
        ({**TEXT, "input_ids": TEXT["input_ids"] * 1j}, "complex64"),
    ],
)
def test_other_fields_are_refused(x, quoted):
    with refused("wrong-shape", "inputs", quoted):
        InputFields.of(TEXT).pack(x)


def test_other_inputs_are_refused():
    with refused("wrong-type", "inputs", "text"):
        InputFields.of({"text": ["a", "b"]})


def test_damaged_descriptions_are_refused():
    good = {"names": ["a", "b"], "shapes": [[2], []], "kinds": ["real", "bool"]}
    assert InputFields.of_plain(good).width == 3
    for wrong in ({"names": ["a"]}, {"names": ["a", "a"]}, {"kinds": ["real", "x"]}, {"shapes": [[2], ["3"]]}):
        with pytest.raises((ValueError, TypeError)):
            InputFields.of_plain({**good, **wrong})


def test_integer_beyond_float_precision_is_refused():
    for wrong in (2**24 + 1, -(2**24) - 1, -(2**63)):
        with refused("out-of-range", "inputs", "16,777,216"):
            InputFields.of(MIXED).pack((MIXED[0], torch.tensor([wrong, 0]), MIXED[2]))


def test_task_reads_rows_without_changing_the_model():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(2, 2)

        def forward(self, size, age):
            return self.out(torch.stack([size, age], -1))

    model, x = Pair(), {"size": torch.rand(3), "age": torch.rand(3)}
    fields = InputFields.of(x)
    task = drfl.Task(model)
    reading = task.reading(fields)
    rows = fields.pack(x)
    assert reading.layout == task.layout
    assert torch.equal(reading.outputs(task.layout.views(task.w0), rows), model(**x))
    assert reading.model.out.weight is model.out.weight
    assert fields_of(reading.model) == fields
    assert fields_of(model) is None
    with refused("unsupported-combination", "augment"):
        drfl.Task(model, augment=lambda x, uniform: x).reading(fields)
    with refused("unsupported-combination", "model", "torch.bfloat16"):
        drfl.Task(Pair().bfloat16()).reading(InputFields.of({"size": torch.rand(3), "age": torch.ones(3).long()}))
