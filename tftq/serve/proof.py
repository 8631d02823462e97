"""Proofs: what was found out about an exported model, kept beside it with the hashes of its files."""

import json
from collections.abc import Sequence
from pathlib import Path

PAIR_PROOF = "stream.export.json"  # of both halves of a streaming pair
HASHES = "sha256"  # of the models that a proof is of, in its file


def proven_bytes(path: Path, hashes: Sequence[str]) -> int | None:
    """The resident memory that models were measured to take when they were exported.

    Args:
        path: what was proven, see `Proof.write`.
        hashes: SHA-256 of the models, in the order of the export.

    Returns:
        Bytes, above 0; None where the file tells none of these very models.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        size = int(found["cost"]["rss_bytes"])
        return size if size > 0 and found[HASHES] == list(hashes) else None
    except (ValueError, KeyError, TypeError, OverflowError):
        return None
