"""A block run again on the calls recorded of it, whole or cut into samples, with other weights in the place of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from neural_compressor.errors import CalibrationError, ConfigError
from neural_compressor.torch.batches import layer_input, tensors_in
from neural_compressor.torch.hooks import evaluating, hooked
from neural_compressor.torch.modules.kernels.dequantized_product import is_fast_at_bf16
from neural_compressor.torch.modules.weight_only import is_conv1d, matrix_of
from neural_compressor.torch.structure.feeds import by_input, inputs_seen, reads_of_tensors
from neural_compressor.torch.structure.replay import Arguments, independent


class RecordedBlock:
    """``block`` with the weights of ``layers`` open to replacement.

    Nothing of the block is changed, and no gradient is left on its own parameters. Blocks of 16-bit floats run in float32
    too: ``amp`` says whether their products, and only these, are computed in bfloat16.
    """

    def __init__(self, block: nn.Module, layers: Mapping[str, nn.Module], amp: bool | None = None) -> None:
        self.block = block
        self.layers = dict(layers)
        self.device = matrix_of(next(iter(layers.values()))).device
        self.amp = is_fast_at_bf16(self.device.type) if amp is None else amp
        members = set(block.modules())
        strangers = [name for name, layer in layers.items() if layer not in members]
        if strangers:
            raise ConfigError(f"the layers {strangers} are no part of the block {type(block).__name__} to tune")
        self._parameters = {key: _plain(p) for key, p in block.named_parameters()}
        # Statistics of a batch normalisation must be of the type of its weights.
        halves = ((key, b) for key, b in block.named_buffers() if b.dtype in (torch.float16, torch.bfloat16))
        self._parameters |= {key: _plain(b) for key, b in halves}
        # A parameter that two layers share has one name: the other one would be a second value for it.
        shared = {id(p): key for key, p in block.named_parameters()}
        self._keys = {name: shared[id(layer.weight)] for name, layer in layers.items()}

    @property
    def dtype_of_weights(self) -> torch.dtype:
        """What weights are best handed in as."""
        return torch.bfloat16 if self.amp else torch.float32

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Without dropout, and with gradients whatever the caller works under; the block is left as it was."""
        with evaluating(self.block), torch.inference_mode(False), torch.enable_grad():
            yield

    def __call__(self, call: Arguments, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The first tensor the block gives, with ``weights`` (outputs, inputs) by the names of the layers."""
        args, kwargs = independent(call, lambda tensor: _plain(tensor.to(self.device)))
        swapped = {self._keys[name]: _laid_out(weight, self.layers[name]) for name, weight in (weights or {}).items()}
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.amp):
            return first_tensor(functional_call(self.block, {**self._parameters, **swapped}, args, kwargs))

    def loss(self, call: Arguments, target: Tensor, weights: Mapping[str, Tensor] | None = None) -> Tensor:
        """The sum of squared distances of the block's output from ``target``."""
        output = self(call, weights)
        if output.shape != target.shape:
            raise CalibrationError(
                f"the block {type(self.block).__name__} gives a tensor of shape {tuple(output.shape)} where its target has "
                f"{tuple(target.shape)}; targets must be the first tensor of its output for the same call"
            )
        return torch.sum((output.float() - target.to(self.device, torch.float32)).square_())

    def mean_squares(self, calls: Sequence[Arguments]) -> dict[str, Tensor]:
        """The mean square of each input over all ``calls``, for each layer that any of them reached."""
        sums: dict[str, Tensor] = {}
        counts = dict.fromkeys(self.layers, 0)

        def add_squares(name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            x = layer_input((args, kwargs)).detach()
            if not x.numel():  # an expert that no token came to
                return
            x = x.reshape(-1, x.shape[-1]).float()
            squares = x.square().sum(0)
            sums[name] = sums[name] + squares if name in sums else squares
            counts[name] += x.shape[0]

        with hooked(self.layers, before=add_squares), torch.no_grad():
            for call in calls:
                self(call)
        for name, total in sums.items():
            if not bool(torch.isfinite(total).all()):
                raise CalibrationError(
                    f"NaN or Inf reached layer {name!r}; look for an overflow in the model or in the data"
                )
        return {name: total / counts[name] for name, total in sums.items()}

    def sharing_inputs(self, calls: Sequence[Arguments]) -> list[tuple[str, ...]]:
        """The layers that ``calls`` reach, together those that read the same input in all of them."""
        runs = []
        for call in calls:
            with inputs_seen(self.layers) as seen, torch.no_grad():
                self(call)
            runs.append(reads_of_tensors(seen))
        return by_input(runs)


def _laid_out(matrix: Tensor, layer: nn.Module) -> Tensor:
    """``matrix`` (outputs, inputs) as the layer holds it; of a convolution inputs have the axes of its kernel too."""
    assert isinstance(layer.weight, Tensor)
    return matrix.T if is_conv1d(layer) else matrix.reshape(layer.weight.shape)


def first_tensor(output: Any) -> Tensor:
    """The first tensor of what a module gives: itself, or one inside.

    >>> first_tensor((None, {"hidden": torch.ones(2)})).tolist()
    [1.0, 1.0]
    """
    found = next(tensors_in(output), None)
    if found is None:
        raise CalibrationError(f"a block must give a tensor to be tuned, and this one gave {type(output).__name__}")
    return found


def _plain(tensor: Tensor) -> Tensor:
    """The same values without history, ready to be kept for a backward pass, with room for small gradients."""
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor.clone() if tensor.is_inference() else tensor


Sample = tuple[Arguments, Tensor]
"""A call, and the target of its first output."""


def samples_of(
    recorded: RecordedBlock, calls: Sequence[Arguments], targets: Sequence[Tensor], size: int
) -> list[Sample]:
    """The calls with their targets, cut into runs of at most ``size`` samples along the first axis.

    Which arguments go with the samples is not written on them: those are cut that are as long as the target. The block is
    asked whether it gives the same then, and where it does not, calls stay whole.
    """
    longest = max(range(len(calls)), key=lambda i: _length(targets[i]))
    if _length(targets[longest]) <= size or not _cuts_well(recorded, calls[longest], targets[longest], size):
        return list(zip(calls, targets, strict=True))
    return [
        (_cut(call, len(target), rows), target[rows])
        for call, target in zip(calls, targets, strict=True)
        for rows in _runs(_length(target), size)
    ]


def batches(samples: Sequence[Sample], size: int, seed: int | None) -> Iterator[list[Sample]]:
    """Endless batches of about ``size`` samples: each pass in a new order, or as they stand where ``seed`` is None."""
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    batch: list[Sample] = []
    held = 0
    while True:
        count = len(samples)
        for index in range(count) if generator is None else torch.randperm(count, generator=generator).tolist():
            batch.append(samples[index])
            held += _length(samples[index][1])
            if held >= size:
                yield batch
                batch, held = [], 0


def _length(target: Tensor) -> int:
    return target.shape[0] if target.ndim > 1 else 1


def _runs(length: int, size: int) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def _cut(call: Arguments, length: int, rows: slice) -> Arguments:
    return independent(call, lambda t: t[rows] if t.ndim and t.shape[0] == length else t)


def _cuts_well(recorded: RecordedBlock, call: Arguments, target: Tensor, size: int) -> bool:
    """Whether the first and the last run of a call, taken alone, give what they give in the whole."""
    runs = _runs(len(target), size)
    with torch.no_grad():
        whole = recorded(call).float()
        if whole.shape[0] != len(target):
            return False
        for rows in (runs[0], runs[-1]):
            try:
                alone = recorded(_cut(call, len(target), rows)).float()
            except RuntimeError:  # shapes that no longer fit each other
                return False
            if alone.shape != whole[rows].shape:
                return False
            # Kernels round differently for other sizes; samples that see each other differ by far more.
            distance = torch.linalg.vector_norm(alone - whole[rows])
            if not bool(distance <= 0.02 * torch.linalg.vector_norm(whole[rows])):
                return False
    return True
