/* SipHash-1-3 (Aumasson and Bernstein): a keyed hash. Without its seed nobody can choose its values.
 *
 * It indexes every table in which a client's bytes are looked up. With an unkeyed hash, or with a seed that clients can
 * read, a client finds 60,000 keys of one chain, and each command walks all of them.
 */
#ifndef TIMERD_HASH_H
#define TIMERD_HASH_H

#include <stdint.h>
#include <string.h>

/* The 16 bytes of the seed, as two little-endian words. */
typedef struct {
    uint64_t k0, k1;
} Seed;

#define TD_ROTATED(x, bits) (((x) << (bits)) | ((x) >> (64 - (bits))))
#define TD_SIP_ROUND(v)                                                                                                   \
    do {                                                                                                                   \
        (v)[0] += (v)[1], (v)[2] += (v)[3];                                                                                \
        (v)[1] = TD_ROTATED((v)[1], 13) ^ (v)[0], (v)[3] = TD_ROTATED((v)[3], 16) ^ (v)[2];                                \
        (v)[0] = TD_ROTATED((v)[0], 32);                                                                                   \
        (v)[2] += (v)[1], (v)[0] += (v)[3];                                                                                \
        (v)[1] = TD_ROTATED((v)[1], 17) ^ (v)[2], (v)[3] = TD_ROTATED((v)[3], 21) ^ (v)[0];                                \
        (v)[2] = TD_ROTATED((v)[2], 32);                                                                                   \
    } while (0)

static inline void td_sip_begin(uint64_t *v, Seed seed) {
    v[0] = seed.k0 ^ 0x736f6d6570736575u;
    v[1] = seed.k1 ^ 0x646f72616e646f6du;
    v[2] = seed.k0 ^ 0x6c7967656e657261u;
    v[3] = seed.k1 ^ 0x7465646279746573u;
}

static inline void td_sip_add(uint64_t *v, uint64_t word) {
    v[3] ^= word;
    TD_SIP_ROUND(v);
    v[0] ^= word;
}

/* The last word has the rest of the message, and the message's length in its upper byte. */
static inline uint64_t td_sip_end(uint64_t *v, uint64_t last) {
    td_sip_add(v, last);
    v[2] ^= 0xff;
    TD_SIP_ROUND(v);
    TD_SIP_ROUND(v);
    TD_SIP_ROUND(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* A message of up to 7 bytes. */
static inline uint64_t td_sip_short(Seed seed, uint64_t message, uint32_t length) {
    uint64_t v[4];
    td_sip_begin(v, seed);
    return td_sip_end(v, message | (uint64_t)length << 56);
}

/* The message is `length` bytes, followed by one byte: `mark`. */
static inline uint64_t td_sip_marked(Seed seed, const uint8_t *bytes, uint32_t length, uint8_t mark) {
    uint64_t v[4], word, last = (uint64_t)(length + 1) << 56;
    uint32_t rest = length & 7;
    td_sip_begin(v, seed);
    if (length >= 8) {
        const uint8_t *end = bytes + (length - rest);
        do {
            memcpy(&word, bytes, 8);
            td_sip_add(v, word);
            bytes += 8;
        } while (bytes != end);
        /* Load the last 8 bytes, and shift out those that are hashed already: a copy of known size is one load. */
        memcpy(&word, bytes + rest - 8, 8);
        word = rest ? word >> (64 - 8 * rest) : 0;
    } else if (rest >= 4) {
        uint32_t low, high;
        memcpy(&low, bytes, 4);
        memcpy(&high, bytes + rest - 4, 4);
        word = low | (uint64_t)high << (8 * (rest - 4));
    } else if (rest) {
        word = bytes[0] | (uint64_t)bytes[rest / 2] << (8 * (rest / 2)) | (uint64_t)bytes[rest - 1] << (8 * (rest - 1));
    } else {
        word = 0;
    }
    word |= (uint64_t)mark << (8 * rest);
    if (rest == 7) {
        td_sip_add(v, word);
        word = 0;
    }
    return td_sip_end(v, word | last);
}

#endif
