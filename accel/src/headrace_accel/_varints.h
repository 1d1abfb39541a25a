/* Zigzag varints, which the fields of records use. */

#ifndef HEADRACE_VARINTS_H
#define HEADRACE_VARINTS_H

#include <stdint.h>
#include <stddef.h>

#define MAX_HEADERS (1 << 16) /* the largest number of headers of one record, as in the reference implementations */
#define MIN_RECORD_LENGTH 6 /* the least value of a record's length field, which does not count itself */

/* Reads a zigzag varint of at most `bits` bits; NULL if it is cut off or too long. */
static inline const uint8_t *
read_varint(const uint8_t *at, const uint8_t *end, int bits, int64_t *value)
{
    if (at < end && *at < 0x80) { /* the most frequent case */
        *value = (int64_t)(*at >> 1) ^ -(int64_t)(*at & 1);
        return at + 1;
    }
    uint64_t number = 0;
    const int most = bits == 32 ? 5 : 10;
    for (int index = 0; index < most; index++) {
        if (at >= end)
            return NULL;
        const uint8_t byte = *at++;
        if (index == most - 1 && byte > (bits == 32 ? 0x0F : 0x01))
            return NULL; /* more bits than the type has */
        number |= (uint64_t)(byte & 0x7F) << (7 * index);
        if (byte < 0x80) {
            *value = (int64_t)(number >> 1) ^ -(int64_t)(number & 1);
            return at;
        }
    }
    return NULL;
}

static inline int
varint_size(int64_t value)
{
    uint64_t number = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    int size = 1;
    while (number >= 0x80) {
        number >>= 7;
        size++;
    }
    return size;
}

static inline uint8_t *
write_varint(uint8_t *at, int64_t value)
{
    uint64_t number = ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
    while (number >= 0x80) {
        *at++ = (uint8_t)(number | 0x80);
        number >>= 7;
    }
    *at++ = (uint8_t)number;
    return at;
}

#endif
