/* Writes the records of batches into the buffers of Arrow columns, without a Python object for each record.
 *
 * The reference implementation in Python is `headrace.spark.source.columns`, which defines the correct result. The
 * first record that is not well-formed, and all records after it, are left to the reference implementation. A record
 * is read completely before any part of it is stored, and each read is checked against the end of its record. Columns
 * that the caller does not request are skipped.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_varints.h"

#define MAX_BYTES (INT32_MAX / 4) /* limit for several records, because header names may become three times as long */
#define MAX_NAME_BYTES (INT32_MAX / 3)

/* The outcome of reading a record. SKIPPED and PAST: its offset is before or after the requested range. */
enum Outcome { DONE = 0, FULL = 1, DAMAGED = 2, SKIPPED = 3, PAST = 4, FAILED = -1 };

/* ---------------------------------------------------------------- growing buffers */

/* A growing buffer in a bytes object. Arrow reads the bytes in place, so they are not copied again. */
typedef struct {
    PyObject *bytes; /* NULL while the buffer is empty */
    Py_ssize_t used, capacity;
} Buffer;

static int
reserve(Buffer *buffer, Py_ssize_t more)
{
    if (more <= buffer->capacity - buffer->used)
        return 0;
    if (more > PY_SSIZE_T_MAX / 4 || buffer->used > PY_SSIZE_T_MAX / 4) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t capacity = buffer->capacity < 256 ? 256 : 2 * buffer->capacity;
    if (capacity < buffer->used + more)
        capacity = buffer->used + more;
    if (buffer->bytes == NULL)
        buffer->bytes = PyBytes_FromStringAndSize(NULL, capacity);
    else
        _PyBytes_Resize(&buffer->bytes, capacity);
    if (buffer->bytes == NULL) {
        buffer->used = buffer->capacity = 0;
        return -1;
    }
    buffer->capacity = capacity;
    return 0;
}

static inline char *
end_of(const Buffer *buffer)
{
    return PyBytes_AS_STRING(buffer->bytes) + buffer->used;
}

static inline void
put_int32(Buffer *buffer, int32_t number)
{
    memcpy(end_of(buffer), &number, sizeof number);
    buffer->used += (Py_ssize_t)sizeof number;
}

static inline void
put_int64(Buffer *buffer, int64_t number)
{
    memcpy(end_of(buffer), &number, sizeof number);
    buffer->used += (Py_ssize_t)sizeof number;
}

static void
drop(Buffer *buffer)
{
    Py_CLEAR(buffer->bytes);
    buffer->used = buffer->capacity = 0;
}

/* Returns the bytes object, and empties the buffer. */
static PyObject *
release(Buffer *buffer)
{
    PyObject *bytes = buffer->bytes;
    const Py_ssize_t used = buffer->used;
    buffer->bytes = NULL;
    buffer->used = buffer->capacity = 0;
    if (bytes == NULL)
        return PyBytes_FromStringAndSize(NULL, 0);
    if (PyBytes_GET_SIZE(bytes) != used)
        _PyBytes_Resize(&bytes, used); /* NULL after an error */
    return bytes;
}

/* ---------------------------------------------------------------- columns of bytes */

typedef struct {
    Buffer ends, data, validity;
    Py_ssize_t count, nulls;
} Binary;

static int
binary_reserve(Binary *column, Py_ssize_t entries)
{
    if (reserve(&column->ends, (entries + 1) * (Py_ssize_t)sizeof(int32_t)) < 0
        || reserve(&column->validity, entries / 8 + 1) < 0)
        return -1;
    if (column->ends.used == 0)
        put_int32(&column->ends, 0);
    return 0;
}

/* Adds an entry; a size of -1 is null. The caller has reserved space for the entry and its bytes. */
static inline void
binary_put(Binary *column, const void *bytes, int64_t size)
{
    const int bit = (int)(column->count & 7);
    if (bit == 0) {
        *end_of(&column->validity) = 0;
        column->validity.used++;
    }
    if (size >= 0) {
        end_of(&column->validity)[-1] |= (char)(1 << bit);
        if (size > 0)
            memcpy(end_of(&column->data), bytes, (size_t)size);
        column->data.used += (Py_ssize_t)size;
    }
    else {
        column->nulls++;
    }
    column->count++;
    put_int32(&column->ends, (int32_t)column->data.used);
}

static void
binary_drop(Binary *column)
{
    drop(&column->ends);
    drop(&column->data);
    drop(&column->validity);
    column->count = column->nulls = 0;
}

/* Returns (nulls, validity or None, ends, bytes), and empties the column. */
static PyObject *
binary_release(Binary *column)
{
    const Py_ssize_t nulls = column->nulls;
    column->count = column->nulls = 0;
    PyObject *validity = release(&column->validity);
    if (validity != NULL && nulls == 0)
        Py_SETREF(validity, Py_NewRef(Py_None));
    return Py_BuildValue("(nNNN)", nulls, validity, release(&column->ends), release(&column->data));
}

/* ---------------------------------------------------------------- the writer */

typedef struct {
    PyObject_HEAD
    char with_key, with_value, with_offset, with_timestamp, with_type, with_headers;
    Py_ssize_t max_rows, max_bytes, rows, bytes;
    Binary keys, values, names, contents;
    Buffer offsets, timestamps, types, header_ends;
} ColumnWriter;

static void
writer_drop(ColumnWriter *self)
{
    binary_drop(&self->keys);
    binary_drop(&self->values);
    binary_drop(&self->names);
    binary_drop(&self->contents);
    drop(&self->offsets);
    drop(&self->timestamps);
    drop(&self->types);
    drop(&self->header_ends);
    self->rows = self->bytes = 0;
}

static void
writer_dealloc(ColumnWriter *self)
{
    writer_drop(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int
writer_init(ColumnWriter *self, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"columns", "max_rows", "max_bytes", NULL};
    const struct {
        const char *name;
        char *wanted;
    } known[] = {
        {"key", &self->with_key},           {"value", &self->with_value},
        {"offset", &self->with_offset},     {"timestamp", &self->with_timestamp},
        {"timestampType", &self->with_type}, {"headers", &self->with_headers},
    };
    PyObject *columns;
    Py_ssize_t max_rows, max_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!nn:ColumnWriter", keywords, &PyTuple_Type, &columns, &max_rows,
                                     &max_bytes))
        return -1;
    if (max_rows < 1 || max_rows > INT32_MAX / 16 || max_bytes < 1 || max_bytes > MAX_BYTES) {
        PyErr_SetString(PyExc_ValueError, "max_rows or max_bytes is not what Arrow can hold");
        return -1;
    }
    writer_drop(self);
    self->max_rows = max_rows;
    self->max_bytes = max_bytes;
    for (size_t index = 0; index < sizeof known / sizeof *known; index++) {
        *known[index].wanted = 0;
        for (Py_ssize_t place = 0; place < PyTuple_GET_SIZE(columns); place++) {
            PyObject *name = PyTuple_GET_ITEM(columns, place);
            if (!PyUnicode_Check(name)) {
                PyErr_SetString(PyExc_TypeError, "columns are names");
                return -1;
            }
            if (PyUnicode_CompareWithASCIIString(name, known[index].name) == 0)
                *known[index].wanted = 1;
        }
    }
    return 0;
}

static int
reserve_rows(ColumnWriter *self, Py_ssize_t more)
{
    if ((self->with_key && binary_reserve(&self->keys, more) < 0)
        || (self->with_value && binary_reserve(&self->values, more) < 0)
        || (self->with_offset && reserve(&self->offsets, more * (Py_ssize_t)sizeof(int64_t)) < 0)
        || (self->with_timestamp && reserve(&self->timestamps, more * (Py_ssize_t)sizeof(int64_t)) < 0)
        || (self->with_type && reserve(&self->types, more * (Py_ssize_t)sizeof(int32_t)) < 0))
        return -1;
    if (self->with_headers) {
        if (reserve(&self->header_ends, (more + 1) * (Py_ssize_t)sizeof(int32_t)) < 0
            || binary_reserve(&self->names, 0) < 0 || binary_reserve(&self->contents, 0) < 0)
            return -1;
        if (self->header_ends.used == 0)
            put_int32(&self->header_ends, 0);
    }
    return 0;
}

/* ---------------------------------------------------------------- reading records */

typedef struct {
    int64_t base_offset, base_timestamp, start, end;
    int64_t fixed_timestamp;
    int has_fixed_timestamp;
    int32_t timestamp_type;
} Batch;

typedef struct {
    const uint8_t *bytes;
    int64_t size; /* -1: null */
} Field;

typedef struct {
    int64_t offset, timestamp_us;
    Field key, value;
    const uint8_t *headers; /* after their count */
    int64_t header_count, name_bytes, content_bytes;
    const uint8_t *end;
} Record;

/* Each function that reads returns the position after the data; NULL if the reference implementation must check it. */

static inline const uint8_t *
read_field(const uint8_t *at, const uint8_t *end, Field *field)
{
    at = read_varint(at, end, 32, &field->size);
    if (at == NULL || field->size < -1 || field->size > end - at)
        return NULL;
    field->bytes = at;
    return field->size < 0 ? at : at + field->size;
}

static const uint8_t *
read_headers(const uint8_t *at, Record *record)
{
    at = read_varint(at, record->end, 32, &record->header_count);
    if (at == NULL || record->header_count < 0 || record->header_count > (record->end - at) / 2
        || record->header_count > MAX_HEADERS)
        return NULL;
    record->headers = at;
    record->name_bytes = record->content_bytes = 0;
    for (int64_t index = 0; index < record->header_count; index++) {
        Field name, content;
        at = read_field(at, record->end, &name);
        if (at == NULL || name.size < 0 || (at = read_field(at, record->end, &content)) == NULL)
            return NULL;
        record->name_bytes += name.size;
        record->content_bytes += content.size < 0 ? 0 : content.size;
    }
    return at == record->end && record->name_bytes <= MAX_NAME_BYTES ? at : NULL;
}

static inline int
read_timestamp(const Batch *batch, int64_t delta, int64_t *timestamp_us)
{
    int64_t timestamp;
    if (batch->has_fixed_timestamp)
        timestamp = batch->fixed_timestamp;
    else if (__builtin_add_overflow(batch->base_timestamp, delta, &timestamp))
        return 0;
    return !__builtin_mul_overflow(timestamp, (int64_t)1000, timestamp_us);
}

static inline enum Outcome
read_record(const ColumnWriter *self, const Batch *batch, const uint8_t *at, const uint8_t *limit, Record *record)
{
    const uint8_t *const begin = at;
    int64_t length, timestamp_delta, offset_delta;
    at = read_varint(at, limit, 32, &length);
    if (at == NULL || length < MIN_RECORD_LENGTH || length > limit - at)
        return DAMAGED;
    record->end = at + length;
    at = read_varint(at + 1, record->end, 64, &timestamp_delta); /* after the attributes, which are unused */
    if (at == NULL || (at = read_varint(at, record->end, 32, &offset_delta)) == NULL
        || __builtin_add_overflow(batch->base_offset, offset_delta, &record->offset))
        return DAMAGED;
    if (record->offset < batch->start)
        return SKIPPED;
    if (record->offset >= batch->end)
        return PAST;
    if (self->rows >= self->max_rows || (self->rows && record->end - begin > self->max_bytes - self->bytes))
        return FULL;
    if (self->with_timestamp && !read_timestamp(batch, timestamp_delta, &record->timestamp_us))
        return DAMAGED;
    at = read_field(at, record->end, &record->key);
    if (at == NULL || (at = read_field(at, record->end, &record->value)) == NULL || at >= record->end)
        return DAMAGED;
    if (self->with_headers && read_headers(at, record) == NULL)
        return DAMAGED;
    return DONE;
}

/* Adds a name. Bytes that are not UTF-8 become U+FFFD, as in Python. */
static int
put_name(Binary *names, const Field *name)
{
    int64_t index = 0;
    while (index < name->size && name->bytes[index] < 0x80)
        index++;
    if (index == name->size) {
        binary_put(names, name->bytes, name->size);
        return 0;
    }
    PyObject *text = PyUnicode_DecodeUTF8((const char *)name->bytes, (Py_ssize_t)name->size, "replace");
    if (text == NULL)
        return -1;
    Py_ssize_t size;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
    if (bytes == NULL || reserve(&names->data, size) < 0) {
        Py_DECREF(text);
        return -1;
    }
    binary_put(names, bytes, size);
    Py_DECREF(text);
    return 0;
}

static int
put_headers(ColumnWriter *self, const Record *record)
{
    const uint8_t *at = record->headers;
    if (record->header_count
        && (binary_reserve(&self->names, (Py_ssize_t)record->header_count) < 0
            || binary_reserve(&self->contents, (Py_ssize_t)record->header_count) < 0))
        return -1;
    for (int64_t index = 0; index < record->header_count; index++) {
        Field name = {NULL, 0}, content = {NULL, 0}; /* read_headers has checked them, so this cannot fail */
        at = read_field(read_field(at, record->end, &name), record->end, &content);
        if (reserve(&self->names.data, (Py_ssize_t)name.size) < 0
            || reserve(&self->contents.data, content.size < 0 ? 0 : (Py_ssize_t)content.size) < 0
            || put_name(&self->names, &name) < 0)
            return -1;
        binary_put(&self->contents, content.bytes, content.size);
    }
    put_int32(&self->header_ends, (int32_t)self->names.count);
    return 0;
}

static int
put_bytes(Binary *column, const Field *field)
{
    if (field->size > 0 && reserve(&column->data, (Py_ssize_t)field->size) < 0)
        return -1;
    binary_put(column, field->bytes, field->size);
    return 0;
}

static int
put_record(ColumnWriter *self, const Batch *batch, const Record *record)
{
    if ((self->with_key && put_bytes(&self->keys, &record->key) < 0)
        || (self->with_value && put_bytes(&self->values, &record->value) < 0)
        || (self->with_headers && put_headers(self, record) < 0))
        return -1;
    if (self->with_offset)
        put_int64(&self->offsets, record->offset);
    if (self->with_timestamp)
        put_int64(&self->timestamps, record->timestamp_us);
    if (self->with_type)
        put_int32(&self->types, batch->timestamp_type);
    self->rows++;
    return 0;
}

/* Reads records until all are read or one cannot be added; moves `at` and `left` to the first record not read. */
static enum Outcome
walk_records(ColumnWriter *self, const Batch *batch, const uint8_t **at, const uint8_t *limit, Py_ssize_t *left)
{
    Record record = {0};
    const Py_ssize_t space = self->max_rows - self->rows;
    if (reserve_rows(self, *left < space ? *left : space) < 0)
        return FAILED;
    for (; *left > 0; --*left) {
        const enum Outcome outcome = read_record(self, batch, *at, limit, &record);
        if (outcome == PAST) { /* offsets ascend, so no requested record follows */
            *at = limit;
            *left = 0;
            return DONE;
        }
        if (outcome == DONE) {
            if (put_record(self, batch, &record) < 0)
                return FAILED;
            self->bytes += record.end - *at;
        }
        else if (outcome != SKIPPED) {
            return outcome;
        }
        *at = record.end;
    }
    return DONE;
}

PyDoc_STRVAR(walk_doc,
"walk(section, place, count, base_offset, base_timestamp, fixed_timestamp, timestamp_type, start, end)\n"
"--\n\n"
"Add those of `count` records from byte `place` on whose offsets are at least `start` and below `end`.\n\n"
"Return the position and the number of the remaining records, and the reason: 0 no records remain, 1 there is no\n"
"space for the next one, 2 the next one is not well-formed.");

static PyObject *
writer_walk(ColumnWriter *self, PyObject *args)
{
    Py_buffer section;
    Py_ssize_t place, left;
    long long base_offset, base_timestamp, start, end;
    PyObject *fixed_timestamp;
    Batch batch;
    if (!PyArg_ParseTuple(args, "y*nnLLOiLL:walk", &section, &place, &left, &base_offset, &base_timestamp,
                          &fixed_timestamp, &batch.timestamp_type, &start, &end))
        return NULL;
    batch.base_offset = base_offset;
    batch.base_timestamp = base_timestamp;
    batch.start = start;
    batch.end = end;
    batch.has_fixed_timestamp = fixed_timestamp != Py_None;
    batch.fixed_timestamp = batch.has_fixed_timestamp ? PyLong_AsLongLong(fixed_timestamp) : 0;
    PyObject *result = NULL;
    if (place < 0 || place > section.len || left < 0 || self->max_rows == 0) {
        PyErr_SetString(PyExc_ValueError, "place or count lies outside of the section");
    }
    else if (!PyErr_Occurred()) {
        const uint8_t *at = (const uint8_t *)section.buf + place;
        const uint8_t *limit = (const uint8_t *)section.buf + section.len;
        const enum Outcome outcome = walk_records(self, &batch, &at, limit, &left);
        if (outcome == FAILED)
            writer_drop(self); /* a part of a record may have been added */
        else
            result = Py_BuildValue("(nni)", (Py_ssize_t)(at - (const uint8_t *)section.buf), left, (int)outcome);
    }
    PyBuffer_Release(&section);
    return result;
}

/* ---------------------------------------------------------------- returning the columns */

static int
add_column(PyObject *columns, const char *name, PyObject *buffers)
{
    if (buffers == NULL)
        return -1;
    const int done = PyDict_SetItemString(columns, name, buffers);
    Py_DECREF(buffers);
    return done;
}

static PyObject *
release_headers(ColumnWriter *self)
{
    const Py_ssize_t entries = self->names.count;
    PyObject *ends = release(&self->header_ends), *names = binary_release(&self->names);
    return Py_BuildValue("(nNNN)", entries, ends, names, binary_release(&self->contents));
}

PyDoc_STRVAR(take_doc,
"take()\n--\n\n"
"Return the buffers of the rows by column name, and remove the rows.\n\n"
"A column of bytes is (nulls, validity or None, ends, bytes). Headers are (entries, ends, names, contents).");

static PyObject *
writer_take(ColumnWriter *self, PyObject *Py_UNUSED(ignored))
{
    PyObject *columns = PyDict_New();
    if (columns == NULL)
        return NULL;
    const int failed = (self->with_key && add_column(columns, "key", binary_release(&self->keys)) < 0)
                       || (self->with_value && add_column(columns, "value", binary_release(&self->values)) < 0)
                       || (self->with_offset && add_column(columns, "offset", release(&self->offsets)) < 0)
                       || (self->with_timestamp && add_column(columns, "timestamp", release(&self->timestamps)) < 0)
                       || (self->with_type && add_column(columns, "timestampType", release(&self->types)) < 0)
                       || (self->with_headers && add_column(columns, "headers", release_headers(self)) < 0);
    writer_drop(self);
    if (failed)
        Py_CLEAR(columns);
    return columns;
}

static Py_ssize_t
writer_length(ColumnWriter *self)
{
    return self->rows;
}

static PyMethodDef methods[] = {
    {"walk", (PyCFunction)writer_walk, METH_VARARGS, walk_doc},
    {"take", (PyCFunction)writer_take, METH_NOARGS, take_doc},
    {NULL, NULL, 0, NULL},
};

static PySequenceMethods as_sequence = {.sq_length = (lenfunc)writer_length};

PyTypeObject ColumnWriterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "headrace_accel._kernels.ColumnWriter",
    .tp_doc = "ColumnWriter(columns, max_rows, max_bytes)\n--\n\nCollects records as the buffers of Arrow columns.",
    .tp_basicsize = sizeof(ColumnWriter),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)writer_init,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_as_sequence = &as_sequence,
    .tp_methods = methods,
};
