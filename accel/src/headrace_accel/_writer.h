/* The writer for the records of one batch, and the hash of keys: the parts that more than one file uses. */

#ifndef HEADRACE_WRITER_H
#define HEADRACE_WRITER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
    PyObject_HEAD
    PyObject *encode_headers;
    uint8_t *buffer;
    Py_ssize_t used, capacity, max_bytes, count;
    Py_ssize_t views; /* the number of views of the buffer, which must not change while there are any */
    int64_t base_timestamp, max_timestamp;
} RecordWriter;

extern PyTypeObject RecordWriterType;

/* A key or a value: bytes, an object with the buffer protocol, or None. */
typedef struct {
    const void *bytes;
    int64_t size; /* -1: None */
    Py_buffer view;
} Field;

/* Adds a record. Returns 1 if it was written, 0 if the batch is full, -1 for an error. */
int writer_put(RecordWriter *self, const Field *key, const Field *value, const char *tail, Py_ssize_t tail_size,
               int64_t timestamp);

/* Returns the 32-bit hash of a key, with the seed of Kafka's clients. */
static inline uint32_t
hash_of(const uint8_t *at, Py_ssize_t size)
{
    const uint32_t factor = 0x5BD1E995u;
    const Py_ssize_t words = size / 4, rest = size % 4;
    uint32_t result = 0x9747B28Cu ^ (uint32_t)size;
    for (Py_ssize_t index = 0; index < words; index++, at += 4) {
        uint32_t word = (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        word *= factor;
        word = (word ^ (word >> 24)) * factor;
        result = (result * factor) ^ word;
    }
    if (rest) {
        uint32_t tail = 0;
        for (Py_ssize_t index = 0; index < rest; index++)
            tail |= (uint32_t)at[index] << (8 * index);
        result = (result ^ tail) * factor;
    }
    result = (result ^ (result >> 13)) * factor;
    return result ^ (result >> 15);
}

#endif
