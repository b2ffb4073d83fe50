"""`.bin` files that PyTorch wrote are read as what PyTorch reads."""

from collections import OrderedDict

import numpy as np
import pytest

from axcore.interop.torch_files import tensors_in_bin

pytestmark = pytest.mark.parity


def test_tensors_are_those_of_pytorch(tmp_path):
    torch = pytest.importorskip("torch", reason="run make parity")
    whole = torch.arange(12.0).reshape(3, 4)
    state = OrderedDict(
        whole=whole,
        tied=whole,
        part=torch.nn.Parameter(whole[1:]),
        half=whole.to(torch.bfloat16),
        count=torch.tensor(3),
        linear=torch.nn.Linear(4, 3).weight,
    )
    torch.save(state, tmp_path / "m.bin")
    found = tensors_in_bin(tmp_path / "m.bin")
    again = torch.load(tmp_path / "m.bin", weights_only=True)
    assert found.keys() == again.keys()
    for name, tensor in again.items():
        expected = tensor.detach().float().numpy()
        np.testing.assert_array_equal(found[name].read().astype(np.float32), expected)
