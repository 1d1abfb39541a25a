/* Adds rows of Arrow columns to the batches of a producer, without a Python object for each row.
 *
 * The reference implementation is `Rows.fill` of headrace.clients.producer.many, which takes rows as tuples.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#include "_writer.h"

/* A column of the rows. `data` has the numbers, or the bytes of all entries, which `ends` divides. */
typedef struct {
    int there; /* whether the rows have this column */
    Py_ssize_t offset;
    Py_buffer validity, ends, data; /* obj is NULL for a missing buffer */
} Column;

typedef struct {
    PyObject_HEAD
    Py_ssize_t count, position;
    int64_t timestamp_ms; /* the timestamp of rows that have none */
    Column key, value, timestamp, partition;
} RowColumns;

typedef struct {
    Field key, value;
    int64_t timestamp_ms, partition; /* partition -1: the row names none */
} Row;

static int
take_buffer(PyObject *given, Py_buffer *buffer, Py_ssize_t least)
{
    buffer->obj = NULL;
    buffer->buf = NULL;
    buffer->len = 0;
    if (given != Py_None && PyObject_GetBuffer(given, buffer, PyBUF_SIMPLE) < 0)
        return -1;
    if (given != Py_None ? buffer->len >= least : least == 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "a column's buffer is shorter than its rows");
    return -1;
}

/* Reads (offset, validity, ends, data), or None. `width` is the size of a number in bytes; 0 for a column of bytes. */
static int
take_column(PyObject *given, Column *column, Py_ssize_t count, Py_ssize_t width)
{
    if (given == Py_None)
        return 0;
    PyObject *validity, *ends, *data;
    if (!PyTuple_Check(given) || !PyArg_ParseTuple(given, "nOOO", &column->offset, &validity, &ends, &data)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a column is (offset, validity, ends, data)");
        return -1;
    }
    if (column->offset < 0 || column->offset > PY_SSIZE_T_MAX / 16 - count) {
        PyErr_SetString(PyExc_ValueError, "a column begins at its first row or behind it");
        return -1;
    }
    column->there = 1;
    const Py_ssize_t rows = column->offset + count;
    if (take_buffer(validity, &column->validity, validity == Py_None ? 0 : (rows + 7) / 8) < 0
        || take_buffer(ends, &column->ends, width || !count ? 0 : 4 * (rows + 1)) < 0
        || take_buffer(data, &column->data, width * (count ? rows : 0)) < 0)
        return -1;
    return 0;
}

static void
release_column(Column *column)
{
    Py_buffer *buffers[] = {&column->validity, &column->ends, &column->data};
    for (int index = 0; index < 3; index++)
        if (buffers[index]->obj != NULL)
            PyBuffer_Release(buffers[index]);
    memset(column, 0, sizeof *column);
}

static void
release_columns(RowColumns *self)
{
    release_column(&self->key);
    release_column(&self->value);
    release_column(&self->timestamp);
    release_column(&self->partition);
}

static int
rows_init(RowColumns *self, PyObject *args, PyObject *Py_UNUSED(names))
{
    PyObject *key, *value, *timestamp, *partition;
    long long timestamp_ms;
    Py_ssize_t count;
    release_columns(self);
    self->count = self->position = 0;
    if (!PyArg_ParseTuple(args, "nLOOOO:RowColumns", &count, &timestamp_ms, &key, &value, &timestamp, &partition))
        return -1;
    if (count < 0 || count > PY_SSIZE_T_MAX / 16) {
        PyErr_SetString(PyExc_ValueError, "a number of rows is not negative");
        return -1;
    }
    if (take_column(key, &self->key, count, 0) < 0 || take_column(value, &self->value, count, 0) < 0
        || take_column(timestamp, &self->timestamp, count, 8) < 0
        || take_column(partition, &self->partition, count, 4) < 0)
        return -1;
    self->count = count;
    self->timestamp_ms = timestamp_ms;
    return 0;
}

static void
rows_dealloc(RowColumns *self)
{
    release_columns(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static inline int
is_there(const Column *column, Py_ssize_t row)
{
    if (!column->there)
        return 0;
    const uint8_t *bits = column->validity.buf;
    const Py_ssize_t index = column->offset + row;
    return bits == NULL || (bits[index >> 3] >> (index & 7) & 1);
}

static inline int
read_bytes(const Column *column, Py_ssize_t row, Field *field)
{
    field->view.obj = NULL;
    field->bytes = NULL;
    field->size = -1;
    if (!is_there(column, row))
        return 0;
    const int32_t *ends = (const int32_t *)column->ends.buf + column->offset + row;
    if (ends[0] < 0 || ends[1] < ends[0] || ends[1] > column->data.len) {
        PyErr_SetString(PyExc_ValueError, "a column's content is shorter than its rows");
        return -1;
    }
    field->bytes = (const char *)column->data.buf + ends[0];
    field->size = ends[1] - ends[0];
    return 0;
}

static inline int
read_row(const RowColumns *self, Py_ssize_t index, Row *row)
{
    if (read_bytes(&self->key, index, &row->key) < 0 || read_bytes(&self->value, index, &row->value) < 0)
        return -1;
    row->timestamp_ms = self->timestamp_ms;
    if (is_there(&self->timestamp, index)) { /* microseconds, rounded down to milliseconds */
        const int64_t time = ((const int64_t *)self->timestamp.data.buf)[self->timestamp.offset + index];
        row->timestamp_ms = time / 1000 - (time % 1000 < 0);
    }
    row->partition = -1;
    if (is_there(&self->partition, index))
        row->partition = ((const int32_t *)self->partition.data.buf)[self->partition.offset + index];
    return 0;
}

static PyObject *
bytes_of(const Field *field)
{
    if (field->size < 0)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize(field->bytes, (Py_ssize_t)field->size);
}

static PyObject *
as_tuple(const Row *row, int64_t partition)
{
    PyObject *place = partition < 0 ? Py_NewRef(Py_None) : PyLong_FromLongLong(partition);
    return Py_BuildValue("(NN()LN)", bytes_of(&row->key), bytes_of(&row->value), (long long)row->timestamp_ms, place);
}

/* Returns the writer of a partition's open batch as a borrowed reference; NULL if there is none, or after an error. */
static RecordWriter *
find_writer(PyObject *queues, Py_ssize_t partition)
{
    PyObject *number = PyLong_FromSsize_t(partition);
    if (number == NULL)
        return NULL;
    PyObject *queue = PyDict_GetItemWithError(queues, number);
    Py_DECREF(number);
    if (queue == NULL)
        return NULL;
    PyObject *batch = PyObject_GetAttrString(queue, "open");
    if (batch == NULL || batch == Py_None) {
        Py_XDECREF(batch);
        return NULL;
    }
    PyObject *append = PyObject_GetAttrString(batch, "append");
    Py_DECREF(batch); /* the queue keeps a reference */
    if (append == NULL)
        return NULL;
    PyObject *writer = PyCFunction_Check(append) ? PyCFunction_GET_SELF(append) : NULL;
    Py_DECREF(append); /* the batch keeps a reference */
    if (writer == NULL || !Py_IS_TYPE(writer, &RecordWriterType)) {
        PyErr_SetString(PyExc_TypeError, "batches are filled by the accelerator's RecordWriter");
        return NULL;
    }
    return (RecordWriter *)writer;
}

/* Returns 1 if the row was added, 0 if no open batch has space for it, -1 for an error. */
static int
add_row(const Row *row, Py_ssize_t place, Py_ssize_t partitions, PyObject *queues, RecordWriter **writers)
{
    if (place < 0 || place >= partitions)
        return 0;
    if (writers[place] == NULL && (writers[place] = find_writer(queues, place)) == NULL)
        return PyErr_Occurred() ? -1 : 0;
    return writer_put(writers[place], &row->key, &row->value, "", 1, row->timestamp_ms);
}

static PyObject *
fill(RowColumns *self, PyObject *queues, Py_ssize_t partitions, Py_ssize_t hashed, Py_ssize_t sticky,
     RecordWriter **writers)
{
    while (self->position < self->count) {
        Row row;
        if (read_row(self, self->position, &row) < 0)
            return NULL;
        if (row.partition < 0 && hashed > 0 && row.key.size >= 0)
            row.partition = (hash_of(row.key.bytes, (Py_ssize_t)row.key.size) & 0x7FFFFFFF) % hashed;
        const Py_ssize_t place = row.partition < 0 ? sticky : (Py_ssize_t)row.partition;
        const int done = add_row(&row, place, partitions, queues, writers);
        if (done < 0)
            return NULL;
        self->position++;
        if (!done)
            return as_tuple(&row, row.partition);
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(fill_doc,
"fill(queues, count, hashed, sticky)\n--\n\n"
"Add rows to the open batches of queues. Return the first row for which no open batch has space, or None at the end.\n\n"
"The hash of its key chooses the partition of a row without a partition, among `hashed` partitions. If `hashed` is 0,\n"
"or the row has no key, it goes to the partition `sticky`, unless that is -1.");

static PyObject *
rows_fill(RowColumns *self, PyObject *const *args, Py_ssize_t count)
{
    if (count != 4 || !PyDict_CheckExact(args[0])) {
        PyErr_SetString(PyExc_TypeError, "fill() takes queues, count, hashed, sticky");
        return NULL;
    }
    Py_ssize_t numbers[3]; /* count, hashed, sticky */
    for (int index = 0; index < 3; index++) {
        numbers[index] = PyLong_AsSsize_t(args[1 + index]);
        if (numbers[index] == -1 && PyErr_Occurred())
            return NULL;
    }
    const Py_ssize_t partitions = numbers[0];
    if (partitions < 1) {
        PyErr_SetString(PyExc_ValueError, "a topic has a partition at least");
        return NULL;
    }
    /* Each writer is looked up once in a call. No other code runs meanwhile that could close a batch. */
    RecordWriter **writers = PyMem_Calloc((size_t)partitions, sizeof *writers);
    if (writers == NULL)
        return PyErr_NoMemory();
    PyObject *row = fill(self, args[0], partitions, numbers[1], numbers[2], writers);
    PyMem_Free(writers);
    return row;
}

static PyMethodDef rows_methods[] = {
    {"fill", (PyCFunction)(void (*)(void))rows_fill, METH_FASTCALL, fill_doc},
    {NULL, NULL, 0, NULL},
};

PyTypeObject RowColumnsType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "headrace_accel._kernels.RowColumns",
    .tp_doc = "RowColumns(count, timestamp_ms, key, value, timestamp, partition)\n--\n\n"
              "Rows of Arrow columns. A column is (offset, validity or None, ends or None, content or None), or None.",
    .tp_basicsize = sizeof(RowColumns),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)rows_init,
    .tp_dealloc = (destructor)rows_dealloc,
    .tp_methods = rows_methods,
};
