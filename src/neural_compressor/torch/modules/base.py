"""Base class of quantized modules, and the registry of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from neural_compressor.errors import FormatError, QuantizationError
from neural_compressor.registry import Registry
from neural_compressor.schemes import PER_TENSOR, OpScheme, QParams, QuantizedArray, TensorScheme
from neural_compressor.schemes.affine import integer_limits
from neural_compressor.schemes.grid import decode
from neural_compressor.torch.modules.activation import (
    Range,
    as_u8,
    calibrated_qparams,
    has_fixed_range,
    simulate,
    within_codes,
)
from neural_compressor.torch.modules.input_change import InputChange
from neural_compressor.torch.modules.kernels.fp8 import is_fp8, why_not_fp8
from neural_compressor.torch.modules.kernels.integer import is_tensor_int8, why_simulated
from neural_compressor.torch.modules.kernels.quint8 import U8
from neural_compressor.torch.modules.kernels.table import SIMULATED, kernel_for
from neural_compressor.torch.modules.layer_operator import call_layer, numbered
from neural_compressor.torch.modules.portable import as_type, is_leaving, rounded

if TYPE_CHECKING:
    from typing_extensions import Self


_SETTING = (int, float, str, tuple, type(None))


class QuantModule(nn.Module):
    """An op that computes as an :class:`OpScheme` says.

    Its state is what a checkpoint stores: packed weights, scales, zero-points, bias. What a kernel makes of that is
    built at the first call and is no part of the state, of a copy or of a pickle.
    """

    #: The float class this module stands for.
    replaces: ClassVar[type[nn.Module]] = nn.Module
    #: The tensors the op quantizes when it runs; their qparams are the buffers ``<name>_scale``, ``<name>_zero_point``.
    inputs: ClassVar[tuple[str, ...]] = ("input",)
    #: The attribute with the type of outputs, where no input says it: a cast of the model is one of that.
    output_type: ClassVar[str | None] = None

    def __init__(self, module: nn.Module, scheme: OpScheme, relu: bool = False) -> None:
        super().__init__()
        # The forward of a model may read how a layer was made, such as its stride.
        settings = {name: value for name, value in vars(module).items() if isinstance(value, _SETTING)}
        for name in settings.keys() - self.__dict__.keys() - set(dir(type(self))):
            self.__dict__[name] = settings[name]
        self.scheme = scheme
        self.relu = relu
        self.op_type = self.replaces.__name__
        #: What computes the op, as a report shows it.
        self.kernel = SIMULATED
        self.training = module.training
        # In a list, as torch.export looks at the attributes of modules for objects of torch that it cannot store.
        self._prepacked: list[Any] = []
        self._settled = object()
        self._u8_inputs: dict[str, U8] = {}
        self._number = numbered(self)

    # -- making one -------------------------------------------------------------------------------------------------

    @classmethod
    def from_float(
        cls,
        module: nn.Module,
        scheme: OpScheme,
        act_ranges: Sequence[Range] = (),
        relu: bool = False,
        change: InputChange | None = None,
    ) -> Self:
        """Quantize ``module``; ``act_ranges`` holds ``(low, high)`` of each tensor input where the scheme is static.

        ``change`` is what the op does to its input first (a multiplier a channel, a rotation, an order). ``module`` holds
        the weight for inputs as they come, which is changed accordingly; ``act_ranges`` are those of the changed input.
        """
        new = cls(module, scheme, relu)
        device = next((p.device for p in module.parameters()), torch.device("cpu"))
        new._keep_input(None if change is None else change.to(device))
        new._keep_qparams(act_ranges)
        new._quantize(module)
        new._settle()
        return new if device.type == "cpu" else new.to(device)

    @classmethod
    def from_state(cls, module: nn.Module, scheme: OpScheme, state: Mapping[str, Tensor], relu: bool = False) -> Self:
        """Rebuild what ``state_dict()`` was taken from; of ``module`` only the hyper-parameters are read."""
        new = cls(module, scheme, relu)
        new._restore(module, state)
        new._check_values()
        new._settle()
        return new

    @abstractmethod
    def _quantize(self, module: nn.Module) -> None:
        """Fill the state from the values of the float module."""

    def _stored(self) -> tuple[str, ...]:
        """Names of the state's tensors, without the qparams of inputs; a question mark ends those not always there."""
        return ()

    def _restore(self, module: nn.Module, state: Mapping[str, Tensor]) -> None:
        stored = self._stored()
        names = {name.removesuffix("?") for name in stored}
        names |= {f"{name}_{part}" for name in self.inputs for part in ("scale", "zero_point")}
        missing = [name for name in stored if not name.endswith("?") and name not in state]
        if self._is_calibrated and self.inputs and f"{self.inputs[0]}_scale" not in state:
            missing.append(f"{self.inputs[0]}_scale")
        unknown = sorted(set(state) - names)
        if missing or unknown:
            raise FormatError(
                f"the stored tensors do not make a {type(self).__name__}: missing {missing}, not known {unknown}; "
                f"it takes {sorted(names)}"
            )
        for name in sorted(names):
            self.register_buffer(name, state.get(name))
        if self._is_calibrated and self.scheme.activation and self.scheme.activation.granularity == PER_TENSOR:
            for name in self.inputs:
                self._check_shape(f"{name}_scale", ())
                self._check_shape(f"{name}_zero_point", ())

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._buffers.get(name)
        if found is not None and tuple(found.shape) != shape:
            raise FormatError(f"the stored tensor {name!r} has shape {tuple(found.shape)}, and {shape} is needed")

    def _check_values(self) -> None:
        """Refuse stored numbers that no quantization gives: they would compute something, and nobody would notice."""
        in_bytes = None if self.scheme.weight is None else self.scheme.weight.dtype.scale_type
        for name, stored in self.state_dict().items():
            if stored.is_meta or not stored.numel() or name.endswith("_packed"):
                continue
            tensor = stored if in_bytes is None or name != "weight_scale" else decode(stored, in_bytes)
            low, high = tensor.min(), tensor.max()
            if tensor.is_floating_point() and not bool(torch.isfinite(low) & torch.isfinite(high)):
                raise FormatError(f"the stored tensor {name!r} holds NaN or Inf")
            if name.endswith("_scale") and tensor.is_floating_point() and not self._fitting_scales(name, tensor):
                raise FormatError(
                    f"the stored tensor {name!r} holds scales from {float(low):g} on; they have to be above 0"
                )
            scheme = self._scheme_of(name) if name.endswith("_zero_point") else None
            if scheme is not None and scheme.dtype.is_integer:
                smallest, largest = integer_limits(scheme)
                # GPTQ files hold zero points of one above the largest code.
                largest += self.scheme.mode == "weight_only"
                if int(low) < smallest or int(high) > largest:
                    raise FormatError(
                        f"the stored tensor {name!r} holds zero points from {int(low)} to {int(high)}; those of "
                        f"{scheme.dtype.name} are from {smallest} to {largest}"
                    )

    def _fitting_scales(self, name: str, scales: Tensor) -> bool:
        weight = self.scheme.weight
        if name == "weight_scale" and self.scheme.mode == "weight_only" and weight is not None and weight.symmetric:
            return bool((scales != 0).all())  # a negative one turns the side around that has a code more (full range)
        return bool((scales > 0).all())

    def _scheme_of(self, zero_point: str) -> TensorScheme | None:
        """The scheme of what the zero points of that name belong to."""
        owner, weight = zero_point.removesuffix("_zero_point"), self.scheme.weight
        if owner in (*self.inputs, "output"):
            return self.scheme.activation
        nested = {"scale": "scales", "zero": "zeros"}.get(owner.rpartition("_")[2])
        return weight if weight is None or nested is None else getattr(weight, nested)

    def _keep_input(self, change: InputChange | None) -> None:
        """Register what is done to the input."""
        if change:
            raise QuantizationError(f"a {self.op_type} has no input whose channels could be scaled, turned or ordered")

    def _keep_qparams(self, act_ranges: Sequence[Range]) -> None:
        scheme = self.scheme.activation if self._is_calibrated else None
        if scheme is not None and len(act_ranges) < len(self.inputs):
            raise QuantizationError(
                f"a static {self.op_type} needs the calibrated range of {', '.join(self.inputs)}; "
                f"got {len(act_ranges)} ranges"
            )
        for index, name in enumerate(self.inputs):
            found = None if scheme is None else calibrated_qparams(act_ranges[index], scheme, name)
            self._register_qparams(name, found)

    def _register_qparams(self, name: str, qparams: QParams | None) -> None:
        self.register_buffer(f"{name}_scale", None if qparams is None else qparams.scale)
        self.register_buffer(f"{name}_zero_point", None if qparams is None else qparams.zero_point)

    def set_qparams(self, name: str, qparams: QParams) -> None:
        """Have another fixed scale and zero-point for one of :attr:`inputs`, or for the output."""
        self._register_qparams(name, qparams)
        self._settle()

    @property
    def _is_calibrated(self) -> bool:
        return self.scheme.mode == "static" and has_fixed_range(self.scheme.activation)

    # -- the kernel -------------------------------------------------------------------------------------------------

    def _choose_kernel(self, device: str) -> str:
        """The kernel of this op on a kind of device."""
        found = kernel_for(self.op_type, self.scheme, device) if device == "cpu" else None
        return found.name if found else SIMULATED

    def _settle(self) -> None:
        """The state is new or lives elsewhere now: choose the kernel, forget what was made from the old state."""
        self._prepacked = []
        self._settled = object()  # another one than before: what was built around the old state notices
        self._u8_inputs = {}
        if self._has_u8:
            # While a graph is traced buffers have no values to read.
            for name in (*self.inputs, "output"):
                if (scale := self._buffers.get(f"{name}_scale")) is not None and not scale.is_meta:
                    self._u8(name)
        devices = {buffer.device.type for buffer in self.buffers()} or {"cpu"}
        self.kernel = self._choose_kernel(devices.pop()) if len(devices) == 1 else SIMULATED

    @property
    def simulated(self) -> bool:
        """Whether the op is float arithmetic on rounded values."""
        return self.kernel == SIMULATED

    def why_simulated(self) -> str:
        """What stands against an integer kernel and what would help; empty where one runs the op."""
        if not self.simulated:
            return ""
        devices = {buffer.device.type for buffer in self.buffers()} or {"cpu"}
        elsewhere = devices - {"cpu"}
        if is_fp8(self.scheme) and len(devices) == 1:
            weight = self._buffers.get("weight_packed")
            return why_not_fp8(self.op_type, self.scheme, () if weight is None else tuple(weight.shape), *devices)
        if elsewhere:
            return f"integer kernels run on the CPU, and its tensors are on {', '.join(sorted(elsewhere))}"
        return self._why_no_kernel()

    def _why_no_kernel(self) -> str:
        return why_simulated(self.op_type, self.scheme)

    def prepacked(self) -> Any:
        """The weight in the kernel's layout, built at the first call."""
        if not self._prepacked:
            self._prepacked = [self._prepack()]
        return self._prepacked[0]

    def forget_prepacked(self) -> None:
        """Free the kernel's layout of the weight; the next call builds it again."""
        self._prepacked = []

    def _prepack(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no kernel that packs weights")

    # -- weights ----------------------------------------------------------------------------------------------------

    def weight_array(self) -> QuantizedArray | None:
        """The quantized weight, one row an output channel; None for an op without a single weight."""
        return None

    def dequantized_weight(self) -> Tensor | None:
        """The weight the op computes with, float32, in the layout of the float module."""
        return None

    # -- activations ------------------------------------------------------------------------------------------------

    def qparams(self, name: str) -> QParams | None:
        """Scale and zero-point of one of :attr:`inputs`, or None where they are not fixed."""
        scale = self._buffers.get(f"{name}_scale")
        return None if scale is None else QParams(scale, self._buffers.get(f"{name}_zero_point"))

    @property
    def input_qparams(self) -> U8 | None:
        """Scale and zero-point of the quint8 tensors the op takes as its first input; None if it takes floats only."""
        scheme = self.scheme.activation
        if self.simulated or not self._is_calibrated or not self.inputs or scheme is None or scheme.reduce_range:
            return None  # a producer of quint8 uses all 256 codes, a reduced range has half of them
        return self._u8(self.inputs[0])

    @property
    def output_qparams(self) -> U8 | None:
        """Scale and zero-point of the range its output had, where that was seen because something is added to it."""
        scheme = self.scheme.activation
        reduced = scheme is not None and scheme.reduce_range
        return None if self.simulated or reduced or self.qparams("output") is None else self._u8("output")

    @property
    def _has_u8(self) -> bool:
        """Whether its activations are 8-bit codes over one calibrated range."""
        scheme = self.scheme.activation
        return self._is_calibrated and scheme is not None and is_tensor_int8(scheme)

    def _u8(self, name: str) -> U8:
        if name not in self._u8_inputs:
            found, scheme = self.qparams(name), self.scheme.activation
            assert found is not None, f"{name} of {self.op_type} has no fixed range"
            assert scheme is not None
            self._u8_inputs[name] = as_u8(found, scheme)
        return self._u8_inputs[name]

    def _rounded(self, x: Tensor, name: str = "input") -> Tensor:
        """``x`` as the scheme's activation type represents it, in float; as it is where activations stay in float."""
        if self.scheme.activation is None:
            return x.dequantize() if x.is_quantized else x
        if self._has_u8 and is_leaving() and name in self._u8_inputs:
            qparams = self._u8(name)
            return rounded(within_codes(x, qparams, self.scheme.activation), *qparams)
        return simulate(x, self.scheme.activation, self.qparams(name))

    def _leaving(self, y: Tensor) -> Tensor:
        """The output ``y`` as it goes on in a graph that leaves this process: rounded where its range is known."""
        if not is_leaving() or "output" not in self._u8_inputs:
            return y
        return as_type(rounded(y, *self._u8("output")), y.dtype)

    # -- one operator -----------------------------------------------------------------------------------------------

    def _as_operator(self, *inputs: Tensor) -> Tensor:
        """The output of a layer that has one, as the result of one operator in a graph that is compiled; no gradients."""
        outputs: list[Tensor] = call_layer([x.detach() if x.requires_grad else x for x in inputs], self._number)
        return outputs[0]

    def operator_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """What the layer computes, for the operator that stands for it."""
        return [self.forward(*inputs)]

    def empty_outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Tensors of the shapes, types and layouts of its outputs."""
        raise NotImplementedError(f"{type(self).__name__} is not compiled as one operator")

    def input_gradients(self, inputs: Sequence[Tensor], gradients: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of its inputs; integer kernels have none."""
        raise NotImplementedError(f"{type(self).__name__} has no gradients")

    # -- nn.Module --------------------------------------------------------------------------------------------------

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move, but never cast: ``model.half()`` must not round scales."""

        def moved(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            return new if new.dtype == tensor.dtype else tensor.to(new.device)

        if self.output_type is not None:
            setattr(self, self.output_type, fn(torch.empty(0, dtype=getattr(self, self.output_type))).dtype)
        super()._apply(moved, recurse)  # type: ignore[no-untyped-call]
        self._settle()
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._settle()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prepacked": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._number = numbered(self)

    def extra_repr(self) -> str:
        activation = f", activation={self.scheme.activation.dtype.name}" if self.scheme.activation else ""
        relu = ", relu=True" if self.relu else ""
        return f"{self.scheme.precision}{activation}, mode={self.scheme.mode}, kernel={self.kernel!r}{relu}"


QUANT_MODULES: Registry[type[QuantModule]] = Registry("quantized module")
"""Quantized modules by the name of the float class they replace."""


def quant_class(module: nn.Module) -> type[QuantModule]:
    """The registered class for the class of ``module``, or for a base of it whose ``forward`` it did not override."""
    for cls in type(module).__mro__:
        if cls.__name__ not in QUANT_MODULES:
            continue
        found = QUANT_MODULES[cls.__name__]
        if found.replaces is cls and cls.forward is type(module).forward:
            return found
    known = ", ".join(QUANT_MODULES.names())
    raise QuantizationError(f"no quantized module behaves like {type(module).__qualname__}; there is one for {known}")


def finite(tensor: Tensor, what: str) -> Tensor:
    """``tensor`` in float32, detached; NaN and infinity are errors."""
    values = tensor.detach().float()
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise QuantizationError(f"{what} holds {bad} NaN or infinite values of {values.numel()}; all must be finite")
    return values


def is_finite(tensor: Tensor) -> bool:
    """Whether no number of ``tensor`` is NaN or infinite, found in one pass and without memory as large as it."""
    return not tensor.is_floating_point() or not tensor.numel() or all(map(torch.isfinite, torch.aminmax(tensor)))
