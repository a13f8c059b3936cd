"""Transactions, as transaction.h has them: words are staged with td_put, and stored all or nothing by td_commit."""

from libc.stdint cimport uint64_t
cdef extern from "transaction.h" nogil:
    ctypedef struct TdTransaction:
        char *base
        uint64_t staged

    void td_put(TdTransaction *tx, const void *address, uint64_t word)
    void td_commit(TdTransaction *tx)
    void td_store_entries(char *base, uint64_t count)
    void TD_ORDERED_STORE(char *base, void *address, uint64_t word)
    int TD_DEFECT(int number)
