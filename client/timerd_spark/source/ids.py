"""The ids that users give to operations, as the column `id` has them: as hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column


def id_hash(id: Column | str) -> Column:
    """The hash of an id as in the column `id` of a journal: 32 hexadecimal digits. The daemon knows only this hash.

        settled.join(orders, settled.id == id_hash("order_id"))

    `id` is a column of strings or bytes, or its name; null gives null. Source: BLAKE2b with 16 bytes, RFC 7693. A query
    fails on an id that no operation can have: an empty id, an id of more than 255 bytes, or a number.
    """
    from pyspark.sql.functions import udf

    return udf(id_hash_of, "string", useArrow=True)(id)


def id_hash_of(id: object) -> str | None:
    """The hash of an id. Raises InvalidKeyError, KeyTooLongError."""
    from timerd_client.arguments import id_hash as hash_of

    return None if id is None else hash_of(id).hex()
