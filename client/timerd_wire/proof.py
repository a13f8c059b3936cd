"""A client's proof, and the incarnation that follows from it.

The arena shows each client's incarnation to all readers. So an incarnation proves nothing. A client makes 16 random
bytes, its *proof*, and sends them to the daemon alone. The incarnation is their hash: it can be checked, but the proof
cannot be computed from it.
"""

from __future__ import annotations

import hashlib
from typing import Final

PROOF_SIZE: Final = 16  # bytes; the incarnation has as many


def incarnation_of(proof: bytes) -> bytes:
    """The incarnation of the client that has this proof: BLAKE2b of 16 bytes."""
    return hashlib.blake2b(proof, digest_size=PROOF_SIZE).digest()
