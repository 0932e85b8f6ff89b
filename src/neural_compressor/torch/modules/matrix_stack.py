"""Several matrices in one parameter, as mixtures of experts hold them, with packed weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from neural_compressor.errors import FormatError
from neural_compressor.schemes import OpScheme
from neural_compressor.torch.modules.kernels.stored_weight import StoredWeight
from neural_compressor.torch.modules.kernels.weight_only import Choice
from neural_compressor.torch.modules.weight_only import WeightOnlyLinear


class TensorLike:
    """A module in the place of a parameter (matrices, rows, columns), for code that takes it for the tensor it was.

    An expert that is asked for by its number is made alone; anything else that a tensor does is done by one with the
    values of all of them.
    """

    shape: torch.Size
    dtype: torch.dtype

    def matrix(self, number: int) -> Tensor:
        """The values of one matrix."""
        raise NotImplementedError

    def values(self) -> Tensor:
        """The values of all matrices."""
        return torch.stack([self.matrix(number) for number in range(len(self))])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, Tensor) and not index.is_floating_point() and index.dtype != torch.bool:
            wanted, places = torch.unique(index, return_inverse=True)
            return torch.stack([self.matrix(number) for number in wanted.tolist()])[places]
        return self.matrix(index) if isinstance(index, int) else self.values()[index]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        whole_args, whole_kwargs = tree_map_only(TensorLike, TensorLike.values, (tuple(args), kwargs or {}))
        return func(*whole_args, **whole_kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            # Hidden names are how Python asks what an object can do: those must be answered for the module.
            if name.startswith("_") or not hasattr(Tensor, name):
                raise
        return getattr(self.values(), name)


class MatrixStack(TensorLike, nn.Module):
    """The float parameter, with its matrices (outputs, inputs) below each other in ``weight``.

    ``inputs_first`` says that the parameter has them the other way round, (matrices, inputs, outputs).
    """

    def __init__(self, parameter: nn.Parameter, inputs_first: bool = False) -> None:
        super().__init__()
        self.shape, self.inputs_first = parameter.shape, inputs_first
        weight = parameter.detach().transpose(1, 2) if inputs_first else parameter.detach()
        self.weight = nn.Parameter(weight.reshape(-1, weight.shape[-1]), parameter.requires_grad)

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        """The type of the values."""
        return self.weight.dtype

    def matrix(self, number: int) -> Tensor:
        matrix = self.weight.reshape(self.shape[0], -1, self.weight.shape[1])[number]
        return matrix.t() if self.inputs_first else matrix


class QuantMatrixStack(TensorLike, WeightOnlyLinear):
    """Packed matrices below each other, each with its own scales.

    >>> from neural_compressor.schemes import OpScheme
    >>> float_stack = MatrixStack(nn.Parameter(torch.randn(4, 8, 64)))
    >>> stack = QuantMatrixStack.from_float(float_stack, OpScheme.from_dict({"weight": {"dtype": "int4", "group_size": 32}}))
    >>> stack[2].shape, torch.einsum("eoi,i->eo", stack, torch.ones(64)).shape
    (torch.Size([8, 64]), torch.Size([4, 8]))
    """

    output_type = "dtype"

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__(module, scheme, relu)
        assert isinstance(module, MatrixStack)
        self.shape, self.dtype, self.inputs_first = module.shape, module.dtype, module.inputs_first

    def matrix(self, number: int) -> Tensor:
        count, rows, columns = self.shape
        if self.inputs_first:
            rows, columns = columns, rows
        if not -count <= number < count:
            raise IndexError(f"there are {count} matrices in this stack, and none is number {number}")
        first = number % count * rows
        values = self.stored_weight().rows(slice(first, first + rows)).dequantize()
        values = values if self._rotation is None else self._rotation.undo(values)
        values = values.reshape(rows, columns).to(self.dtype)
        return values.t() if self.inputs_first else values

    def dequantized_weight(self) -> Tensor:
        return self.values()

    def linear_weight(self) -> NoReturn:
        """Refused: checkpoint formats hold layers."""
        raise FormatError("a stack of matrices fits no checkpoint format but the toolkit's own")

    def _choice(self, stored: StoredWeight) -> Choice:
        return Choice()

    def _why_no_kernel(self) -> str:
        return "experts in one parameter, whose products the model computes itself: an expert is dequantized for each"


def weight_only_class(module: nn.Module) -> type[WeightOnlyLinear]:
    """The class that holds the weight of ``module`` in few bits."""
    return QuantMatrixStack if isinstance(module, MatrixStack) else WeightOnlyLinear


def parameter_stack(model: nn.Module, name: str) -> MatrixStack | None:
    """The parameter ``name`` of ``model`` as a stack of its matrices; None where a module has that name.

    transformers says by ``is_transposed`` of a module of experts that inputs come first in its matrices.
    """
    owner, _, own = name.rpartition(".")
    module = model.get_submodule(owner)
    parameter = module._parameters.get(own)
    return None if parameter is None else MatrixStack(parameter, getattr(module, "is_transposed", False) is True)


def open_stacks(model: nn.Module, names: Iterable[str]) -> None:
    """Put a :class:`MatrixStack` in the place of each parameter among ``names``: it can be replaced as layers are."""
    for name in names:
        stack = parameter_stack(model, name)
        if stack is not None:
            owner, _, own = name.rpartition(".")
            module = model.get_submodule(owner)
            del module._parameters[own]
            module.add_module(own, stack)
