"""A run directory: what one command left behind, in files that any tool can read.

`pack.json` (schema `wattherd.pack/1`), `decisions-<policy>-<seed>.csv.gz` and
`final-<policy>-<seed>.csv.gz`. The same content always gives the same bytes.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattherd.errors import UserError

PACK_FILE = "pack.json"


def file_stem(policy: str, seed: int) -> str:
    """How a policy and a seed are spelled in file names: `+` and `:` become `_`."""
    return f"{policy.replace('+', '_').replace(':', '_')}-{seed}"


@dataclass(frozen=True, slots=True)
class RunDir:
    """A directory to write into; it is made on first use.

    Raises:
        UserError: it cannot be made or written.
    """

    path: Path

    def write_json(self, name: str, document: Mapping[str, object]) -> Path:
        """One JSON document, indented one level so that a diff shows runs."""
        text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return self._write(name, (text + "\n").encode())

    def write_text(self, name: str, text: str) -> Path:
        """One text file, UTF-8."""
        return self._write(name, text.encode())

    def write_table(
        self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]
    ) -> Path:
        """One gzip CSV; no time stamp goes in, so equal tables are equal files."""
        return self._write(name, gzip.compress(_csv(header, rows), compresslevel=6, mtime=0))

    def write_csv(self, name: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
        """One plain CSV."""
        return self._write(name, _csv(header, rows))

    def _write(self, name: str, content: bytes) -> Path:
        target = self.path / name
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise UserError(
                f"cannot write: {error.strerror}",
                where=str(target),
                hint="choose another directory with --out",
            ) from None
        return target


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()
