"""Proofs: the checks and measurements of an exported model, kept beside it with the hashes of its files."""

import json
from collections.abc import Sequence
from pathlib import Path

HASHES = "sha256"  # key of the hashes in a proof


def proven_bytes(path: Path, hashes: Sequence[str]) -> int | None:
    """Read the resident memory that was measured when models were exported.

    Args:
        path: the proof, as `Proof.write` writes it.
        hashes: SHA-256 of the models, in the order of the export.

    Returns:
        Bytes, above 0; None where the file is damaged or is the proof of other models.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        size = int(found["cost"]["rss_bytes"])
        return size if size > 0 and found[HASHES] == list(hashes) else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
