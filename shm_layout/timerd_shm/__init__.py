"""The declarations of timerd and a read-only reader, on the standard library alone.

declare/ has the formats of the bytes, and generated/ is made from it. host/ knows where the bytes lie, read/ reads
them, and check/ checks them. A room imports only from the rooms to its left: declare < host < read < check.
"""
