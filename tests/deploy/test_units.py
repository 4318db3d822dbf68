"""systemd's units and logrotate's file: known options, and systemd finds no fault."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cometmq.broker.config import BrokerConfig
from cometmq.namesrv.config import NamesrvConfig
from cometmq.options import options_of

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
UNITS = sorted((DEPLOY / "systemd").iterdir())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not there")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for unit in UNITS:
        text = unit.read_text().replace("/opt/cometmq/bin/cometmq", "/bin/true")
        (tmp_path / unit.name.replace("@.", "@broker-a.")).write_text(text)
    files = sorted(map(str, tmp_path.iterdir()))
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False
    )
    assert not [line for line in checked.stderr.splitlines() if str(tmp_path) in line or "cometmq" in line]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_gives_keys_that_exist_and_may_do_little(unit: Path) -> None:
    text = unit.read_text()
    known = {**options_of(BrokerConfig), **options_of(NamesrvConfig)}
    assert set(re.findall(r"-o (\w+)=", text)) <= set(known)
    for line in ("User=cometmq", "NoNewPrivileges=yes", "ProtectSystem=strict", "LimitNOFILE=65536"):
        assert line in text.splitlines()


def test_logrotate_renames_and_does_not_copy() -> None:
    text = (DEPLOY / "logrotate" / "cometmq").read_text()
    assert text.count("{") == text.count("}") == 1
    assert "copytruncate" not in text
