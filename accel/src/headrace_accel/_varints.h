/* Zigzag varints, as records have them. */

#ifndef HEADRACE_VARINTS_H
#define HEADRACE_VARINTS_H

#include <stdint.h>
#include <stddef.h>

#define MAX_HEADERS (1 << 16) /* of one record, as the twins have it */
#define MIN_RECORD_LENGTH 6 /* what a record says of itself at least: its own length is one byte more */

/* Reads a zigzag varint of at most `bits` bits; NULL if it is cut off or too long. */
static inline const uint8_t *
read_varint(const uint8_t *at, const uint8_t *end, int bits, int64_t *value)
{
    if (at < end && *at < 0x80) { /* nearly always */
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
            return NULL; /* more bits than its type has */
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
