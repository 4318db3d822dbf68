"""The credentials of operators: ``$ROCKETMQ_HOME/conf/tools.yml``, where mqadmin looks for them too."""

from __future__ import annotations

import os
from pathlib import Path

from cometmq.remoting.security import ACCESS_KEY_VARIABLE, CREDENTIALS_FILE_VARIABLE, SECRET_KEY_VARIABLE

_TOOLS_FILE = Path("conf", "tools.yml")


def adopt_tools_file() -> None:
    """Let this command, and the Spark workers that it may start, use that file unless other credentials are named."""
    given = (CREDENTIALS_FILE_VARIABLE, ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE)
    home = os.environ.get("ROCKETMQ_HOME")
    if home and not any(os.environ.get(name) for name in given) and (Path(home) / _TOOLS_FILE).is_file():
        os.environ[CREDENTIALS_FILE_VARIABLE] = str(Path(home) / _TOOLS_FILE)
