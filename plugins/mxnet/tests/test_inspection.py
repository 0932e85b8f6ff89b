"""inspect_tensor shows an int8 network in the same terms as the float one."""

import numpy as np
from networks import noise, small_cnn
from neural_compressor_mxnet import MXNetAdaptor

from neural_compressor.testing.options import default_tune_cfg


def test_values_of_an_int8_network_are_near_those_of_the_float_one(tmp_path):
    model, data = small_cnn(), noise()
    adaptor = MXNetAdaptor({"workspace": str(tmp_path)})
    block = adaptor.quantize(
        {**default_tune_cfg(adaptor.query_fw_capability(model)), "calib_sampling_size": 40}, model, data
    )
    before = adaptor.inspect_tensor(model, data, iteration_list=(1, 3), inspect_type="all")
    after = adaptor.inspect_tensor(block, data, iteration_list=(1, 3), inspect_type="all", save_to_disk=True)
    assert list(before["weight"]) == ["cnn_conv0_fwd", "cnn_conv1_fwd", "cnn_dense0_fwd", "cnn_dense1_fwd"]
    assert list(before["activation"][0]) == [*list(before["weight"])[:1], "cnn_pool0_fwd", *list(before["weight"])[1:]]
    pairs = [(before["weight"][n]["weight"], after["weight"][n]["weight"]) for n in before["weight"]]
    for one, other in zip(before["activation"], after["activation"], strict=True):
        pairs += [(one[name]["output0"], other[name]["output0"]) for name in one]
    for reference, actual in pairs:
        assert 0 < np.linalg.norm(actual - reference) < 0.03 * np.linalg.norm(reference)
    np.testing.assert_allclose(
        before["activation"][1]["cnn_dense1_fwd"]["output0"], adaptor.predict(model, data.inputs[16:24]), atol=1e-5
    )
    files = sorted(path.name for path in (tmp_path / "inspect_saved").iterdir())
    assert files == ["activation_1.npz", "activation_2.npz", "weight.npz"]
