"""Puts the hash of the compiled core's sources into the wheel: by it the package knows the core that fits."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CoreSources(BuildHookInterface):  # type: ignore[type-arg]
    """A hook for wheels; an editable package reads the sources themselves."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file and add it to the wheel."""
        if version == "editable":
            return
        root = Path(self.root)
        if not (root / "native" / "src").is_dir():
            raise FileNotFoundError(f"{root / 'native'} is missing: without it no core would ever fit the wheel")
        spec = importlib.util.spec_from_file_location("core_sources", root / "src/cometmq/core_sources.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self._made = tempfile.TemporaryDirectory()
        path = Path(self._made.name) / module.FILE
        path.write_text(module.sources_hash(root / "native") + "\n", encoding="ascii")
        build_data["force_include"][str(path)] = f"cometmq/{module.FILE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the file, which is in the wheel."""
        if version != "editable":
            self._made.cleanup()
