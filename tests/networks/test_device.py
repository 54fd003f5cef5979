from __future__ import annotations

import pytest
import torch
from torch import nn

from apex_acer.config import ConfigError
from apex_acer.networks.device import choose_device, choose_precision

CPU = torch.device("cpu")
CONVOLUTIONS, LINEAR = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))


def test_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.device: 'cuda:99' is not there") as raised:
        choose_device("cuda:99", "learner.device")
    assert "\n" not in str(raised.value)
    assert choose_device("cpu", "actors.device").type == "cpu"


@pytest.mark.parametrize("name", ["avx512_bf16", "amx_bf16", ""])
def test_auto_is_bfloat16_for_convolutions_where_the_processor_has_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {name: True, "avx512_bf16 ": True})
    assert choose_precision("auto", CPU, CONVOLUTIONS) == (torch.bfloat16 if name else None)
    assert choose_precision("auto", CPU, LINEAR) is None


@pytest.mark.parametrize("network", [CONVOLUTIONS, LINEAR])
def test_a_precision_that_is_asked_for_is_given(network: nn.Module) -> None:
    assert choose_precision("bfloat16", CPU, network) is torch.bfloat16
    assert choose_precision("float32", CPU, network) is None
