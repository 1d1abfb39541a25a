/* The loops of Headrace that run once for each record.
 *
 * Each loop has a reference implementation in Python, which defines the correct result. The decoder here accepts only
 * well-formed records. It leaves all other records to the reference implementation, which finds the error and writes
 * its message. So only one place decides about damaged batches, and a check here may be too strict. Every read is
 * checked against the end of its record.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_varints.h"
#include "_writer.h"

#define HEADER_SIZE 61
#define MAX_RECORD_BYTES INT32_MAX

/* ---------------------------------------------------------------- decoding */

/* Each function returns 1 on success, 0 if the reference implementation must check the data, -1 for a Python error. */

/* Reads a field: bytes, or None for a length of -1. */
static inline int
read_field(const uint8_t **at, const uint8_t *end, PyObject **field)
{
    int64_t length;
    const uint8_t *next = read_varint(*at, end, 32, &length);
    if (next == NULL || length < -1 || length > end - next)
        return 0;
    if (length < 0) {
        *field = Py_NewRef(Py_None);
        *at = next;
        return 1;
    }
    *field = PyBytes_FromStringAndSize((const char *)next, (Py_ssize_t)length);
    *at = next + length;
    return *field == NULL ? -1 : 1;
}

static int
read_header(const uint8_t **at, const uint8_t *end, PyObject **header)
{
    int64_t length;
    const uint8_t *next = read_varint(*at, end, 32, &length);
    if (next == NULL || length < 0 || length > end - next)
        return 0;
    PyObject *name = PyUnicode_DecodeUTF8((const char *)next, (Py_ssize_t)length, "surrogateescape");
    if (name == NULL)
        return -1;
    *at = next + length;
    PyObject *content;
    const int found = read_field(at, end, &content);
    if (found != 1) {
        Py_DECREF(name);
        return found;
    }
    *header = PyTuple_New(2);
    if (*header == NULL) {
        Py_DECREF(name);
        Py_DECREF(content);
        return -1;
    }
    PyTuple_SET_ITEM(*header, 0, name);
    PyTuple_SET_ITEM(*header, 1, content);
    return 1;
}

static int
read_headers(const uint8_t **at, const uint8_t *end, PyObject *empty, PyObject **headers)
{
    int64_t count;
    const uint8_t *next = read_varint(*at, end, 32, &count);
    if (next == NULL || count < 0 || count > (end - next) / 2 || count > MAX_HEADERS)
        return 0;
    *at = next;
    if (count == 0) {
        *headers = Py_NewRef(empty);
        return 1;
    }
    PyObject *made = PyTuple_New((Py_ssize_t)count);
    if (made == NULL)
        return -1;
    for (int64_t index = 0; index < count; index++) {
        PyObject *header;
        const int found = read_header(at, end, &header);
        if (found != 1) {
            Py_DECREF(made);
            return found;
        }
        PyTuple_SET_ITEM(made, (Py_ssize_t)index, header);
    }
    *headers = made;
    return 1;
}

typedef struct {
    int64_t base_offset, base_timestamp;
    PyObject *fixed_timestamp; /* borrowed; None: each record has its own timestamp */
    PyTypeObject *kind;
    PyObject *before, *after; /* borrowed: the fields that all records share, before and after the record's own */
    PyObject *empty;
    int untracked; /* whether the shared fields are only text and numbers */
} Shape;

static PyObject *
new_record(const Shape *shape, PyObject *fields[5])
{
    const Py_ssize_t before = PyTuple_GET_SIZE(shape->before), after = PyTuple_GET_SIZE(shape->after);
    PyObject *record = shape->kind->tp_alloc(shape->kind, before + 5 + after);
    if (record == NULL) {
        for (int index = 0; index < 5; index++)
            Py_DECREF(fields[index]);
        return NULL;
    }
    for (Py_ssize_t index = 0; index < before; index++)
        PyTuple_SET_ITEM(record, index, Py_NewRef(PyTuple_GET_ITEM(shape->before, index)));
    for (Py_ssize_t index = 0; index < 5; index++)
        PyTuple_SET_ITEM(record, before + index, fields[index]);
    for (Py_ssize_t index = 0; index < after; index++)
        PyTuple_SET_ITEM(record, before + 5 + index, Py_NewRef(PyTuple_GET_ITEM(shape->after, index)));
    if (shape->untracked && fields[4] == shape->empty)
        PyObject_GC_UnTrack(record); /* it cannot be part of a reference cycle, so the collector need not visit it */
    return record;
}

static int
read_record(const uint8_t **at, const uint8_t *limit, const Shape *shape, PyObject **record, int *with_headers)
{
    int64_t length, timestamp_delta, offset_delta, timestamp, offset;
    const uint8_t *next = read_varint(*at, limit, 32, &length);
    if (next == NULL || length < MIN_RECORD_LENGTH || length > limit - next)
        return 0;
    const uint8_t *end = next + length;
    next = read_varint(next + 1, end, 64, &timestamp_delta); /* after the attributes, which are unused */
    if (next == NULL)
        return 0;
    next = read_varint(next, end, 32, &offset_delta);
    if (next == NULL || __builtin_add_overflow(shape->base_timestamp, timestamp_delta, &timestamp)
        || __builtin_add_overflow(shape->base_offset, offset_delta, &offset))
        return 0;
    PyObject *fields[5] = {NULL, NULL, NULL, NULL, NULL};
    int found = read_field(&next, end, &fields[2]);
    if (found == 1)
        found = read_field(&next, end, &fields[3]);
    if (found == 1)
        found = read_headers(&next, end, shape->empty, &fields[4]);
    if (found == 1 && next != end)
        found = 0;
    if (found == 1) {
        fields[0] = PyLong_FromLongLong(offset);
        fields[1] = shape->fixed_timestamp == Py_None ? PyLong_FromLongLong(timestamp)
                                                      : Py_NewRef(shape->fixed_timestamp);
        if (fields[0] == NULL || fields[1] == NULL)
            found = -1;
    }
    if (found != 1) {
        for (int index = 0; index < 5; index++)
            Py_XDECREF(fields[index]);
        return found;
    }
    *with_headers = fields[4] != shape->empty;
    *record = new_record(shape, fields);
    *at = end;
    return *record == NULL ? -1 : 1;
}

static int
all_atoms(PyObject *fields)
{
    for (Py_ssize_t index = 0; index < PyTuple_GET_SIZE(fields); index++) {
        PyObject *field = PyTuple_GET_ITEM(fields, index);
        if (!PyUnicode_CheckExact(field) && !PyLong_CheckExact(field))
            return 0;
    }
    return 1;
}

/* Reads `count` records from byte `place` on. Stops earlier after a record with headers that ends at least `most_bytes`
 * bytes after `place`. Returns the records and the position after the last one; None if the reference implementation
 * must check the data. */
static PyObject *
read_slice(const Py_buffer *data, Py_ssize_t place, Py_ssize_t count, Py_ssize_t most_bytes, const Shape *shape)
{
    const uint8_t *begin = data->buf, *end = begin + data->len, *start = begin + place, *at = start;
    if (count < 0 || count > (end - at) / (MIN_RECORD_LENGTH + 1))
        Py_RETURN_NONE;
    PyObject *records = PyList_New(count);
    if (records == NULL)
        return NULL;
    Py_ssize_t done = 0;
    int full = 0;
    while (done < count && !full) {
        PyObject *record;
        int with_headers = 0;
        const int found = read_record(&at, end, shape, &record, &with_headers);
        if (found != 1) {
            Py_DECREF(records);
            if (found < 0)
                return NULL;
            Py_RETURN_NONE;
        }
        PyList_SET_ITEM(records, done, record);
        done++;
        full = with_headers && at - start >= most_bytes;
    }
    if (done < count && PyList_SetSlice(records, done, count, NULL) < 0) {
        Py_DECREF(records);
        return NULL;
    }
    return Py_BuildValue("(Nn)", records, (Py_ssize_t)(at - begin));
}

PyDoc_STRVAR(decode_records_doc,
"decode_records(data, place, count, most_bytes, base_offset, base_timestamp, fixed_timestamp, kind, before, after)\n"
"--\n\n"
"Decode `count` records from byte `place` of the bytes after a batch's header. Return them and the position after the\n"
"last one, or None if they are not well-formed. There are fewer records if one with headers ends at least\n"
"`most_bytes` after `place`.\n\n"
"Each record is a `kind`, a named tuple of `before`, offset, timestamp, key, value, headers, `after`.");

static PyObject *
decode_records(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer data;
    Py_ssize_t place, count, most_bytes;
    long long base_offset, base_timestamp;
    Shape shape;
    if (!PyArg_ParseTuple(args, "y*nnnLLOO!O!O!:decode_records", &data, &place, &count, &most_bytes, &base_offset,
                          &base_timestamp, &shape.fixed_timestamp, &PyType_Type, (PyObject **)&shape.kind,
                          &PyTuple_Type, &shape.before, &PyTuple_Type, &shape.after))
        return NULL;
    PyObject *records = NULL;
    if (!PyType_IsSubtype(shape.kind, &PyTuple_Type)
        || shape.kind->tp_basicsize != PyTuple_Type.tp_basicsize) {
        PyErr_SetString(PyExc_TypeError, "kind is a named tuple");
    }
    else if (place < 0 || place > data.len || most_bytes < 0) {
        PyErr_SetString(PyExc_ValueError, "place lies in the data, and most_bytes is not negative");
    }
    else if ((shape.empty = PyTuple_New(0)) != NULL) {
        shape.base_offset = base_offset;
        shape.base_timestamp = base_timestamp;
        shape.untracked = all_atoms(shape.before) && all_atoms(shape.after);
        records = read_slice(&data, place, count, most_bytes, &shape);
        Py_DECREF(shape.empty);
    }
    PyBuffer_Release(&data);
    return records;
}

/* ---------------------------------------------------------------- encoding */

static int
writer_init(RecordWriter *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"max_bytes", "encode_headers", NULL};
    PyObject *encode_headers;
    Py_ssize_t max_bytes;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "nO:RecordWriter", names, &max_bytes, &encode_headers))
        return -1;
    Py_XSETREF(self->encode_headers, Py_NewRef(encode_headers));
    self->max_bytes = max_bytes;
    self->used = self->count = 0;
    self->base_timestamp = 0;
    self->max_timestamp = -1;
    return 0;
}

static int
writer_traverse(RecordWriter *self, visitproc visit, void *arg)
{
    Py_VISIT(self->encode_headers);
    return 0;
}

static int
writer_clear(RecordWriter *self)
{
    Py_CLEAR(self->encode_headers);
    return 0;
}

static void
writer_dealloc(RecordWriter *self)
{
    PyObject_GC_UnTrack(self);
    writer_clear(self);
    PyMem_Free(self->buffer);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int
writer_reserve(RecordWriter *self, Py_ssize_t more)
{
    if (self->views) {
        PyErr_SetString(PyExc_BufferError, "records are not added while others are looked at");
        return -1;
    }
    if (more <= self->capacity - self->used)
        return 0;
    if (more > PY_SSIZE_T_MAX / 4 || self->used > PY_SSIZE_T_MAX / 4) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t capacity = self->capacity < 1024 ? 1024 : 2 * self->capacity;
    if (capacity < self->used + more)
        capacity = self->used + more;
    uint8_t *buffer = PyMem_Realloc(self->buffer, (size_t)capacity);
    if (buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->buffer = buffer;
    self->capacity = capacity;
    return 0;
}

static int
field_get(PyObject *given, Field *field)
{
    field->view.obj = NULL;
    field->bytes = NULL;
    if (given == Py_None) {
        field->size = -1;
        return 0;
    }
    if (PyBytes_CheckExact(given)) {
        field->bytes = PyBytes_AS_STRING(given);
        field->size = PyBytes_GET_SIZE(given);
        return 0;
    }
    if (PyObject_GetBuffer(given, &field->view, PyBUF_SIMPLE) < 0)
        return -1;
    field->bytes = field->view.buf;
    field->size = field->view.len;
    return 0;
}

static void
field_release(Field *field)
{
    if (field->view.obj != NULL)
        PyBuffer_Release(&field->view);
}

static inline uint8_t *
write_field(uint8_t *at, const Field *field)
{
    at = write_varint(at, field->size);
    if (field->size > 0) {
        memcpy(at, field->bytes, (size_t)field->size);
        at += field->size;
    }
    return at;
}

int
writer_put(RecordWriter *self, const Field *key, const Field *value, const char *tail, Py_ssize_t tail_size,
           int64_t timestamp)
{
    int64_t delta = 0;
    if (self->count && __builtin_sub_overflow(timestamp, self->base_timestamp, &delta)) {
        PyErr_Format(PyExc_ValueError, "timestamp %lld, or how far it is from the first, has more than 64 bits",
                     (long long)timestamp);
        return -1;
    }
    const int64_t key_size = key->size > 0 ? key->size : 0, value_size = value->size > 0 ? value->size : 0;
    if (key_size > MAX_RECORD_BYTES || value_size > MAX_RECORD_BYTES || tail_size > MAX_RECORD_BYTES
        || key_size + value_size + tail_size > MAX_RECORD_BYTES - 64 || self->count >= INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a record is larger than its length can say");
        return -1;
    }
    const int64_t length = 1 + varint_size(delta) + varint_size(self->count) + varint_size(key->size) + key_size
                           + varint_size(value->size) + value_size + tail_size;
    const int64_t whole = varint_size(length) + length;
    if (self->count && HEADER_SIZE + self->used + whole > self->max_bytes)
        return 0;
    if (writer_reserve(self, (Py_ssize_t)whole) < 0)
        return -1;
    uint8_t *at = self->buffer + self->used;
    at = write_varint(at, length);
    *at++ = 0; /* attributes */
    at = write_varint(at, delta);
    at = write_varint(at, self->count);
    at = write_field(at, key);
    at = write_field(at, value);
    memcpy(at, tail, (size_t)tail_size);
    if (!self->count)
        self->base_timestamp = timestamp;
    if (timestamp > self->max_timestamp)
        self->max_timestamp = timestamp;
    self->used += (Py_ssize_t)whole;
    self->count++;
    return 1;
}

static int
has_headers(PyObject *headers)
{
    if (headers == NULL || headers == Py_None)
        return 0;
    if (PyTuple_CheckExact(headers))
        return PyTuple_GET_SIZE(headers) > 0;
    return PyObject_IsTrue(headers);
}

static int
writer_add(RecordWriter *self, PyObject *given_key, PyObject *given_value, PyObject *headers, int64_t timestamp)
{
    PyObject *encoded = NULL;
    const char *tail = "";
    Py_ssize_t tail_size = 1; /* the count of headers, which is 0 */
    const int with_headers = has_headers(headers);
    if (with_headers < 0)
        return -1;
    if (with_headers) {
        /* Headers are rare, so Python code encodes them. It may run code of the program, so it makes a copy. */
        encoded = PyObject_CallOneArg(self->encode_headers, headers);
        if (encoded == NULL)
            return -1;
        if (!PyBytes_Check(encoded)) {
            Py_DECREF(encoded);
            PyErr_SetString(PyExc_TypeError, "encoded headers are bytes");
            return -1;
        }
        tail = PyBytes_AS_STRING(encoded);
        tail_size = PyBytes_GET_SIZE(encoded);
    }
    int done = -1;
    Field key, value;
    if (field_get(given_key, &key) == 0) {
        if (field_get(given_value, &value) == 0) {
            done = writer_put(self, &key, &value, tail, tail_size, timestamp);
            field_release(&value);
        }
        field_release(&key);
    }
    Py_XDECREF(encoded);
    return done;
}

PyDoc_STRVAR(append_doc,
"append(key, value, headers=(), timestamp_ms=0)\n--\n\n"
"Add a record. Return False, and add nothing, if it does not fit into the batch.");

static int
as_timestamp(PyObject *given, int64_t *timestamp)
{
    *timestamp = PyLong_AsLongLong(given);
    if (*timestamp != -1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_OverflowError))
        PyErr_Format(PyExc_ValueError, "timestamp %S, or how far it is from the first, has more than 64 bits", given);
    return -1;
}

/* Puts the arguments of a call into the order of `known`. */
static int
append_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject *found[4])
{
    static const char *const known[] = {"key", "value", "headers", "timestamp_ms"};
    const Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count > 4)
        goto wrong;
    for (Py_ssize_t index = 0; index < count; index++)
        found[index] = args[index];
    for (Py_ssize_t index = 0; index < named; index++) {
        PyObject *name = PyTuple_GET_ITEM(names, index);
        int place = 0;
        while (place < 4 && PyUnicode_CompareWithASCIIString(name, known[place]) != 0)
            place++;
        if (place == 4 || found[place] != NULL)
            goto wrong;
        found[place] = args[count + index];
    }
    if (found[0] != NULL && found[1] != NULL)
        return 0;
wrong:
    PyErr_SetString(PyExc_TypeError, "append() takes key, value, headers, timestamp_ms");
    return -1;
}

static PyObject *
writer_append(RecordWriter *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *found[4] = {NULL, NULL, NULL, NULL};
    int64_t timestamp = 0;
    if (append_arguments(args, count, names, found) < 0)
        return NULL;
    if (found[3] != NULL && as_timestamp(found[3], &timestamp) < 0)
        return NULL;
    const int done = writer_add(self, found[0], found[1], found[2], timestamp);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

PyDoc_STRVAR(extend_doc,
"extend(values, start, timestamp_ms)\n--\n\n"
"Add values[start:], as many as fit, without keys and headers. Return their number.");

static PyObject *
writer_extend(RecordWriter *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyList_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "extend() takes a list of values, start, timestamp_ms");
        return NULL;
    }
    const Py_ssize_t start = PyLong_AsSsize_t(args[1]);
    if (start == -1 && PyErr_Occurred())
        return NULL;
    int64_t timestamp;
    if (as_timestamp(args[2], &timestamp) < 0)
        return NULL;
    Py_ssize_t index = start < 0 ? 0 : start;
    const Py_ssize_t first = index;
    for (; index < PyList_GET_SIZE(args[0]); index++) {
        PyObject *value = Py_NewRef(PyList_GET_ITEM(args[0], index));
        const int done = writer_add(self, Py_None, value, NULL, timestamp);
        Py_DECREF(value);
        if (done < 0)
            return NULL;
        if (!done)
            break;
    }
    return PyLong_FromSsize_t(index - first);
}

PyDoc_STRVAR(join_doc, "join()\n--\n\nReturn a view of the bytes of the records.");

static PyObject *
writer_join(RecordWriter *self, PyObject *Py_UNUSED(ignored))
{
    return PyMemoryView_FromObject((PyObject *)self);
}

static int
writer_get_buffer(RecordWriter *self, Py_buffer *view, int flags)
{
    void *buffer = self->buffer == NULL ? "" : (void *)self->buffer;
    if (PyBuffer_FillInfo(view, (PyObject *)self, buffer, self->used, 1, flags) < 0)
        return -1;
    self->views++;
    return 0;
}

static void
writer_release_buffer(RecordWriter *self, Py_buffer *Py_UNUSED(view))
{
    self->views--;
}

static PyBufferProcs writer_as_buffer = {
    .bf_getbuffer = (getbufferproc)writer_get_buffer,
    .bf_releasebuffer = (releasebufferproc)writer_release_buffer,
};

static PyObject *
writer_size(RecordWriter *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(HEADER_SIZE + self->used);
}

static PyObject *
writer_count(RecordWriter *self, void *Py_UNUSED(closure))
{
    return PyLong_FromSsize_t(self->count);
}

static PyObject *
writer_base_timestamp(RecordWriter *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->base_timestamp);
}

static PyObject *
writer_max_timestamp(RecordWriter *self, void *Py_UNUSED(closure))
{
    return PyLong_FromLongLong(self->max_timestamp);
}

static PyMethodDef writer_methods[] = {
    {"append", (PyCFunction)(void (*)(void))writer_append, METH_FASTCALL | METH_KEYWORDS, append_doc},
    {"extend", (PyCFunction)(void (*)(void))writer_extend, METH_FASTCALL, extend_doc},
    {"join", (PyCFunction)writer_join, METH_NOARGS, join_doc},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef writer_values[] = {
    {"size", (getter)writer_size, NULL, "The present size of the batch in bytes, with its header.", NULL},
    {"count", (getter)writer_count, NULL, "The number of records.", NULL},
    {"base_timestamp", (getter)writer_base_timestamp, NULL, "The timestamp of the first record.", NULL},
    {"max_timestamp", (getter)writer_max_timestamp, NULL, "The latest timestamp; -1 without records.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject RecordWriterType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "headrace_accel._kernels.RecordWriter",
    .tp_doc = "RecordWriter(max_bytes, encode_headers)\n--\n\nCollects encoded records of one batch.",
    .tp_basicsize = sizeof(RecordWriter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)writer_init,
    .tp_dealloc = (destructor)writer_dealloc,
    .tp_traverse = (traverseproc)writer_traverse,
    .tp_clear = (inquiry)writer_clear,
    .tp_methods = writer_methods,
    .tp_as_buffer = &writer_as_buffer,
    .tp_getset = writer_values,
};

/* ---------------------------------------------------------------- hashing */

PyDoc_STRVAR(murmur2_doc, "murmur2(data)\n--\n\nReturn the 32-bit hash of a key, with the seed of Kafka's clients.");

static PyObject *
murmur2(PyObject *Py_UNUSED(module), PyObject *given)
{
    Py_buffer data;
    if (PyObject_GetBuffer(given, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    const uint32_t hash = hash_of(data.buf, data.len);
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(hash);
}

/* ---------------------------------------------------------------- module */

extern PyTypeObject ColumnWriterType; /* _columns.c */
extern PyTypeObject RowColumnsType;   /* _rows.c */

static PyMethodDef functions[] = {
    {"decode_records", decode_records, METH_VARARGS, decode_records_doc},
    {"murmur2", murmur2, METH_O, murmur2_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "headrace_accel._kernels",
    .m_doc = "The loops of Headrace that run once for each record.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__kernels(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (PyModule_AddType(module, &RecordWriterType) < 0 || PyModule_AddType(module, &ColumnWriterType) < 0
        || PyModule_AddType(module, &RowColumnsType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
