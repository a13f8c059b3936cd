"""The declarations of timerd and a read-only reader, on the standard library alone.

declare/ says what is true of the bytes, and generated/ is made from it. host/ knows where the bytes lie, read/ looks at
them, and check/ judges them. Imports go from right to left only: declare < host < read < check.
"""
