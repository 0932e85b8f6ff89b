"""What ops can run with on a machine, and weights for one whose kernels add products in 16 bits."""

from neural_compressor.torch.capability import on_this_cpu
from neural_compressor.torch.modules.kernels.integer import IntegerKernel

STATIC = {
    "weight": {"dtype": ["int8"], "scheme": ["sym", "asym"], "granularity": ["per_channel"], "algorithm": ["minmax"]},
    "activation": {
        "dtype": ["uint8"],
        "scheme": ["asym"],
        "granularity": ["per_tensor"],
        "algorithm": ["minmax", "kl"],
        "quant_mode": "static",
    },
}


def test_weights_are_as_they_are_where_kernels_are_exact(monkeypatch):
    monkeypatch.setattr(IntegerKernel, "runs", IntegerKernel.fits)
    assert on_this_cpu("Linear", STATIC) == [STATIC]


def test_weights_are_safe_where_kernels_saturate(monkeypatch):
    def runs(self, op_type, scheme, device="cpu"):
        return self.fits(op_type, scheme, device) and (scheme.weight.pair_safe or scheme.weight.reduce_range)

    monkeypatch.setattr(IntegerKernel, "runs", runs)
    by_scheme = {config["weight"]["scheme"][0]: config for config in on_this_cpu("Linear", STATIC)}
    assert by_scheme["sym"]["weight"]["pair_safe"] == [True]
    assert by_scheme["asym"]["weight"]["reduce_range"] == [True]
    assert all(config["activation"] == STATIC["activation"] for config in by_scheme.values()), "kl is still there"
