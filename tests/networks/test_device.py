from __future__ import annotations

import pytest

from apex_acer.config import ConfigError
from apex_acer.networks.device import choose_device


def test_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learner\.device: 'cuda:99' is not there") as raised:
        choose_device("cuda:99", "learner.device")
    assert "\n" not in str(raised.value)
    assert choose_device("cpu", "actors.device").type == "cpu"
