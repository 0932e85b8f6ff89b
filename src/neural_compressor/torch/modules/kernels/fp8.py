"""Products of 8-bit floats: ``torch._scaled_mm`` on NVIDIA GPUs from compute capability 8.9 on, and room for other devices.

What happens to an input is plain torch: ``torch.compile`` fuses it into what comes before, such as a normalisation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from neural_compressor.schemes import OpScheme, PerBlock, PerChannel, PerGroup, PerTensor, PerToken, TensorScheme
from neural_compressor.schemes.scaling import DEVICE_SCALES, LARGEST_POWER
from neural_compressor.torch.modules.kernels.table import Kernel, kernels_of, register

TORCH_TYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
"""The types of torch whose bit patterns are the codes of ours."""
_SMALLEST_STEP, _LARGEST_STEP = 2.0**-126, torch.finfo(torch.float32).max
_BLOCK = 128
_BOUNDS = {"pow2": (_SMALLEST_STEP, LARGEST_POWER)} | {
    name: (device.scales[0], device.scales[-1]) for name, device in DEVICE_SCALES.items() if device.has_every_power
}
"""The least and the largest scale of each rounding to the next power of two."""
_ROUNDINGS = {"none", *_BOUNDS}
_FEW_ROWS = 64
"""Up to so many rows an H200 multiplies faster with one scale each, and scales rows and outputs afterwards."""
_WIDE_ROW = 8192
"""From so many inputs on an H200 stores the product of a gate and reads it again faster than it computes it twice."""


@dataclass(frozen=True)
class InputRule:
    """How inputs become codes, in plain numbers, which is what ``torch.compile`` reads without a question.

    ``group`` inputs of a row share a scale, or all of them (-1), or one scale is for all rows (0).
    """

    dtype: torch.dtype
    largest: float
    full_scale: float
    rounding: str
    is_unit: bool
    group: int

    @property
    def scales_are_powers(self) -> bool:
        """Whether every scale is a power of two, so that its reciprocal has no error."""
        return self.is_unit or self.rounding in _BOUNDS

    @property
    def fits_all(self) -> bool:
        """Whether a scale that is found for values leaves none of them beyond the largest number."""
        return self.rounding in ("none", "pow2") and not self.is_unit

    @classmethod
    def of(cls, scheme: TensorScheme) -> InputRule:
        """The rule of an activation of 8-bit floats."""
        kind, how, part = scheme.dtype, scheme.scaling, scheme.granularity
        group = part.size if isinstance(part, PerGroup) else -1 if isinstance(part, PerToken) else 0
        full = kind.peak if how is None else how.full_scale(kind)
        rounding, is_unit = ("none", False) if how is None else (how.rounding, how.value == "unit")
        return cls(TORCH_TYPES[kind.name], float(kind.max), float(full), rounding, is_unit, group)


Product = Callable[[Tensor, Tensor, Tensor, Tensor | None, InputRule], Tensor]
"""From inputs in float (rows, inputs), codes of a weight (outputs, inputs), their scales as the scheme has them, the scale
of inputs (None where each has its own) and the rule of inputs to the product, in any float type."""


@dataclass(frozen=True)
class Fp8Kernel(Kernel):
    """A kernel for linear layers of 8-bit floats on a kind of device; one of your own is registered with ``table.register``.

    ``takes`` is asked with the scheme and the shape of the weight, ``works`` once whether the machine at hand has it, and
    ``run`` gives the product without the bias.
    """

    device: str
    takes: Callable[[OpScheme, tuple[int, int]], bool]
    works: Callable[[], bool]
    run: Product

    def fits(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        return device == self.device and op_type == "Linear" and is_fp8(scheme)

    def runs(self, op_type: str, scheme: OpScheme, device: str = "cpu") -> bool:
        return self.fits(op_type, scheme, device) and self.works()


def is_fp8(scheme: OpScheme) -> bool:
    """Whether weight and activation are 8-bit floats."""
    tensors = (scheme.weight, scheme.activation)
    return scheme.mode in ("static", "dynamic") and all(t is not None and t.dtype.name in TORCH_TYPES for t in tensors)


def fp8_kernel(scheme: OpScheme, shape: tuple[int, int], device: str) -> Fp8Kernel | None:
    """The kernel for a linear layer with a weight of ``shape`` on a kind of device, or None."""
    rows = (kernel for kernel in kernels_of(Fp8Kernel) if kernel.takes(scheme, shape))
    return next((kernel for kernel in rows if kernel.runs("Linear", scheme, device)), None)


def why_not_fp8(op_type: str, scheme: OpScheme, shape: tuple[int, ...], device: str) -> str:
    """What stands against a kernel for an op of 8-bit floats, and what would help."""
    found = [kernel for kernel in kernels_of(Fp8Kernel) if kernel.device == device]
    if not found:
        known = ", ".join(sorted({kernel.device for kernel in kernels_of(Fp8Kernel)}))
        return f"8-bit floats have kernels on {known} and none on {device}: it computes in float32 on rounded values"
    if op_type != "Linear":
        return f"8-bit floats have kernels for linear layers alone, not for {op_type}"
    if not any(kernel.works() for kernel in found):
        return f"this {device} device has no products of 8-bit floats (NVIDIA has them from compute capability 8.9 on)"
    kinds = {scheme.weight.dtype.name, scheme.activation.dtype.name} if scheme.weight and scheme.activation else set()
    if kinds == {"fp8_e5m2"}:
        return "no kernel multiplies fp8_e5m2 with fp8_e5m2; take E4M3"
    rounding = scheme.activation.scaling.rounding if scheme.activation and scheme.activation.scaling else "none"
    if scheme.mode == "dynamic" and rounding not in _ROUNDINGS:
        return f"kernels round scales of inputs to powers of two or not at all, and these are those of {rounding}"
    return (
        f"no kernel here multiplies a weight of {tuple(shape)} in this layout; inputs and outputs in multiples of 16, "
        "scales a tensor, a channel and token, or a block of 128 x 128 with groups of 128 have one"
    )


# -- what happens to an input -------------------------------------------------------------------------------------------


def scale_of(magnitude: Tensor, rule: InputRule) -> Tensor:
    """The scales for these magnitudes, as ``Scaling.scale`` finds them, in operators that ``torch.compile`` looks into.

    NaN where a magnitude is no finite number: what holds it is NaN, and its neighbours in a batch are not touched.
    """
    scale = torch.ones_like(magnitude)
    if not rule.is_unit:
        scale = torch.where(magnitude > 0, (magnitude / rule.full_scale).clamp(_SMALLEST_STEP, _LARGEST_STEP), 1.0)
    if rule.rounding in _BOUNDS and not rule.is_unit:
        bits = scale.clamp(*_BOUNDS[rule.rounding]).view(torch.int32)
        scale = ((bits + 0x7FFFFF) & 0x7F800000).view(torch.float32)
    return torch.where(torch.isfinite(magnitude), scale, torch.nan)


def codes_of(values: Tensor, scale: Tensor, rule: InputRule, none_beyond: bool = False) -> Tensor:
    """The nearest values of an 8-bit float to ``values / scale``, ties to even and none beyond the largest.

    Quantizing the product of a gate is bound by arithmetic on a GPU, where a division takes as long as several products, and
    a compiled clamp, which asks at both ends whether it has NaN, twice as long as two comparisons. ``none_beyond`` the
    largest need neither.
    """
    scaled = values * scale.reciprocal() if rule.scales_are_powers else values / scale
    if none_beyond:
        return scaled.to(rule.dtype)
    if not torch.compiler.is_compiling():  # each operator is a pass over memory
        return scaled.clamp(-rule.largest, rule.largest).to(rule.dtype)
    scaled = torch.where(scaled > rule.largest, rule.largest, scaled)
    return torch.where(scaled < -rule.largest, -rule.largest, scaled).to(rule.dtype)


def largest_of(rows: Tensor, axis: int | None) -> Tensor:
    """The largest magnitude along ``axis`` or of all, NaN where there is one.

    Bits of floats without their sign are whole numbers in the same order, with NaN above infinity. A compiled search for the
    largest float asks of each whether it is NaN.
    """
    bits = rows.view(torch.int32) & 0x7FFFFFFF
    return (bits.amax() if axis is None else bits.amax(axis)).view(torch.float32)


def quantized_rows(rows: Tensor, input_scale: Tensor | None, rule: InputRule) -> tuple[Tensor, Tensor]:
    """The inputs as codes, and their scales: one in all, one a row (rows, 1), or one a group (rows, groups)."""
    rows = rows.detach()
    if input_scale is not None:
        return codes_of(rows.float(), input_scale, rule), input_scale
    if rule.group > 0:
        groups = rows.float().reshape(rows.shape[0], -1, rule.group)
        scale = scale_of(largest_of(groups, -1), rule)
        return codes_of(groups, scale[..., None], rule).reshape(rows.shape), scale
    values = _stored(rows).float()
    scale = scale_of(largest_of(values, -1)[:, None] if rule.group else largest_of(values, None), rule)
    return codes_of(values, scale, rule, rule.fits_all), scale


def _stored(rows: Tensor) -> Tensor:
    """``rows`` as they are, which the compiler keeps in memory if they are wide.

    What is before wide rows, such as a gate, it would compute twice: for the largest, and for the codes once they are known.
    """
    if not torch.compiler.is_compiling() or rows.shape[-1] < _WIDE_ROW:
        return rows
    # What is viewed by its strides has to be in memory. Of a view the compiler would take the memory from its beginning on,
    # and a product is none.
    whole = (rows * 1.0).contiguous()
    return whole.as_strided(whole.shape, whole.stride())


# -- torch._scaled_mm ---------------------------------------------------------------------------------------------------


def scaled_product(
    rows: Tensor, weight: Tensor, weight_scale: Tensor, input_scale: Tensor | None, rule: InputRule
) -> Tensor:
    """The product by ``torch._scaled_mm``: one scale each, scales a row and an output, or blocks of 128 by 128."""
    outputs, weight = weight.shape[0], weight.t()
    if weight_scale.dim() == 2:  # blocks; the kernel reads the scales of inputs down the rows, 16 bytes at a time
        count = rows.shape[0]
        codes, scale = quantized_rows(torch.nn.functional.pad(rows, (0, 0, 0, -count % 4)), input_scale, rule)
        return _multiply(codes, weight, scale.t().contiguous().t(), weight_scale.t(), torch.bfloat16)[:count]
    codes, scale = quantized_rows(rows, input_scale, rule)
    if scale.numel() == 1 and weight_scale.numel() == 1:
        wide = rows.dtype if rows.dtype in (torch.float16, torch.float32) else torch.bfloat16
        return _multiply(codes, weight, scale.reshape(1), weight_scale.reshape(1), wide)
    if codes.shape[0] <= _FEW_ROWS:
        one = torch.ones(1, device=codes.device)
        return _multiply(codes, weight, one, one, torch.float32) * scale.reshape(-1, 1) * weight_scale.reshape(1, -1)
    one_a_row = scale.reshape(-1, 1).expand(codes.shape[0], 1).contiguous()
    one_an_output = weight_scale.reshape(1, -1).expand(1, outputs).contiguous()
    return _multiply(codes, weight, one_a_row, one_an_output, torch.bfloat16)


def _multiply(codes: Tensor, weight: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype) -> Tensor:
    fast = scale_a.dim() == 1 or scale_a.shape[1] == 1  # blocks have no product with sums of fewer digits
    y: Tensor = torch._scaled_mm(codes, weight, scale_a=scale_a, scale_b=scale_b, out_dtype=dtype, use_fast_accum=fast)
    return y


def _takes_rows(scheme: OpScheme, shape: tuple[int, int]) -> bool:
    weight, activation = scheme.weight, scheme.activation
    if weight is None or activation is None or shape[0] % 16 or shape[1] % 16:
        return False
    known = isinstance(weight.granularity, (PerTensor, PerChannel)) and isinstance(
        activation.granularity, (PerTensor, PerToken)
    )
    return known and _multiplies(weight, activation, scheme.mode)


def _takes_blocks(scheme: OpScheme, shape: tuple[int, int]) -> bool:
    weight, activation = scheme.weight, scheme.activation
    if weight is None or activation is None or shape[0] % _BLOCK or shape[1] % (4 * _BLOCK):
        return False
    blocks = weight.granularity == PerBlock(_BLOCK, _BLOCK) and activation.granularity == PerGroup(_BLOCK)
    return blocks and scheme.mode == "dynamic" and _multiplies(weight, activation, scheme.mode)


def _multiplies(weight: TensorScheme, activation: TensorScheme, mode: str) -> bool:
    scaling = activation.scaling
    both_wide = weight.dtype.name == activation.dtype.name == "fp8_e5m2"
    # Only scales that are found when the layer runs have to be rounded then.
    return not both_wide and (mode == "static" or scaling is None or scaling.rounding in _ROUNDINGS)


def _has_gpu() -> bool:
    return torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (8, 9)


@functools.cache
def _rows_work() -> bool:
    return _has_gpu() and all(_is_right(16, 16, 16, recipe) for recipe in ("tensor", "row"))


@functools.cache
def _blocks_work() -> bool:
    return _has_gpu() and _is_right(16, 512, 128, "block")


def _is_right(rows: int, inputs: int, outputs: int, recipe: str) -> bool:
    """Whether a product of small whole numbers, which has no rounding, comes out as it should on the GPU."""
    numbers = torch.arange(max(rows, outputs) * inputs, device="cuda") % 7 - 3.0
    a, b = (numbers[: n * inputs].reshape(n, inputs) for n in (rows, outputs))
    shapes = {
        "tensor": ((1,), (1,)),
        "row": ((rows, 1), (1, outputs)),
        "block": ((rows, inputs // _BLOCK), (inputs // _BLOCK, outputs // _BLOCK)),
    }
    one, other = (torch.full(shape, 0.5, device="cuda") for shape in shapes[recipe])
    if recipe == "block":
        one, other = one.t().contiguous().t(), other.t().contiguous().t()
    try:
        codes, weight = (t.to(torch.float8_e4m3fn) for t in (a, b))
        y = _multiply(codes, weight.t(), one, other, torch.bfloat16)
    except (RuntimeError, ValueError):
        return False  # this build of torch, or its libraries, has no such product
    return bool(torch.allclose(y.float(), a @ b.T / 4, rtol=1e-2, atol=1e-2))


FP8_KERNELS = register(
    Fp8Kernel("cuda fp8", "cuda", _takes_rows, _rows_work, scaled_product),
    Fp8Kernel("cuda fp8 blocks", "cuda", _takes_blocks, _blocks_work, scaled_product),
)
