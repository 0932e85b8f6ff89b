"""Matrix products by functions of torch are listed as left in float, with the reason."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from neural_compressor import quantization
from neural_compressor.config import PostTrainingQuantConfig
from neural_compressor.torch import functional
from neural_compressor.torch.adaptor import PyTorchAdaptor

PRODUCTS = {
    "matmul": torch.matmul,
    "operator": lambda x, w: x @ w,
    "method": lambda x, w: x.matmul(w),
    "bmm": lambda x, w: torch.bmm(x, x),
    "baddbmm": lambda x, w: torch.baddbmm(x, x, x),
    "einsum": lambda x, w: torch.einsum("bij,jk->bik", x, w),
    "linear": F.linear,
    "conv1d": lambda x, w: F.conv1d(x, w[..., None]),
    "scaled_dot_product_attention": lambda x, w: F.scaled_dot_product_attention(x, x, x),
}
KINDS = {"operator": "matmul", "method": "matmul"}
CAN_BE_OPS = ("bmm", "baddbmm", "scaled_dot_product_attention")
"""Those that multiply what the model computes; the others multiply with a buffer, or have no quantized form."""


class Product(nn.Module):
    """A layer, and a product of the user's own."""

    def __init__(self, product, inside_leaf):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.part = Part(product, inside_leaf)

    def forward(self, x):
        return self.fc(self.part(x))


class Part(nn.Module):
    def __init__(self, product, leaf):
        super().__init__()
        self.product, self.between = product, nn.Identity() if not leaf else None
        self.register_buffer("table", torch.eye(4))

    def forward(self, x):
        return self.product(x, self.table)


def skipped(model, x):
    return PyTorchAdaptor({"example_inputs": x}).query_fw_capability(model)["skipped"]


@pytest.mark.parametrize("inside_leaf", [False, True], ids=["beside modules", "in a module without any"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_each_is_listed(name, inside_leaf):
    found = skipped(Product(PRODUCTS[name], inside_leaf).eval(), torch.rand(4, 4, 4))
    kind = KINDS.get(name, name)
    assert list(found) == [(f"part.{kind}", kind)]
    own = "by their type 'MatMul'" if name in CAN_BE_OPS else "only modules are quantized"
    assert own in found[f"part.{kind}", kind]


def test_the_reason_names_what_would_be_quantized():
    assert "functional.MatMul" in next(iter(skipped(Product(PRODUCTS["matmul"], True), torch.rand(4, 4, 4)).values()))
    assert "nn.Linear" in next(iter(skipped(Product(PRODUCTS["linear"], True), torch.rand(4, 4, 4)).values()))


def test_every_call_has_a_name_of_its_own():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.matmul = functional.MatMul()

        def forward(self, x):
            return self.matmul(x @ x, x @ x)

    found = PyTorchAdaptor({"example_inputs": torch.rand(4, 4)}).query_fw_capability(Net())
    assert list(found["opwise"]) == [("matmul", "MatMul")]
    assert list(found["skipped"]) == [("matmul_1", "matmul"), ("matmul_2", "matmul")]


def test_the_inside_of_a_listed_module_is_not_listed_again():
    found = skipped(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), torch.rand(2, 3, 4))
    assert {kind for _, kind in found} == {"MultiheadAttention", "NonDynamicallyQuantizableLinear"}


@pytest.mark.parametrize("by_function", [False, True], ids=["loader", "calib_func"])
def test_the_result_lists_them(tmp_path, by_function):
    model, x = Product(PRODUCTS["matmul"], False).eval(), torch.rand(8, 4, 4)
    data = {"calib_func": lambda m: m(x)} if by_function else {"calib_dataloader": [x]}
    q_model = quantization.fit(model, PostTrainingQuantConfig(), workspace=tmp_path, quiet=True, **data)
    record = {r.name: r for r in q_model.result.ops}["part.matmul"]
    assert (record.op_type, record.precision, record.mode) == ("matmul", "fp32", "float")
    assert "functional.MatMul" in record.reason


class OwnWeight(nn.Module):
    """A layer of the user's, with a weight that a function multiplies with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return F.linear(x, self.weight) @ self.weight


def test_products_of_a_module_that_holds_weights_itself_are_listed():
    model, x = nn.Sequential(nn.Linear(4, 4), OwnWeight()).eval(), torch.randn(2, 3, 4)
    adaptor = PyTorchAdaptor({"dataloader": [x]})
    skipped = adaptor.query_fw_capability(model)["skipped"]
    assert {("1.linear", "linear"), ("1.matmul", "matmul")} <= skipped.keys()
