"""Crash points and seeded defects, as faults.h has them. Without TIMERD_FAULTS they are empty functions."""

from libc.stdint cimport uint64_t

cdef extern from "faults.h":
    enum:
        FAULTS_BUILT
    char *faults_copies
    uint64_t faults_size
    uint64_t faults_count
    void faults_record(uint64_t limit, uint64_t chance)
    void faults_set_defect(int number)
    void faults_beside(const char *memory, uint64_t size)
    void faults_nothing_beside(const char *memory)
