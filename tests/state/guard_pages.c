/* Memory of NumPy arrays that ends at a page nobody may touch; what lies before them is checked.
 *
 * Built and loaded by fuzz_reader.py. A read or write behind the end of an array kills the process
 * at once; one in the few bytes before its begin, or between its end and the page, is noticed when
 * the array is freed. */
#define NPY_NO_DEPRECATED_API NPY_1_22_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <Python.h>
#include <numpy/arrayobject.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { kPage = 4096, kCanary = 0xA5 };

typedef struct {
  size_t total;
  size_t size;
} Header;

static void *guarded_malloc(void *context, size_t size) {
  (void)context;
  const size_t aligned = ((size ? size : 1) + 15) & ~(size_t)15;
  if (aligned < size) return NULL;
  const size_t body = (aligned + kPage - 1) / kPage * kPage;
  const size_t total = body + 2 * kPage;
  char *base = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return NULL;
  mprotect(base + kPage + body, kPage, PROT_NONE);
  *(Header *)base = (Header){total, size};
  char *data = base + kPage + body - aligned;
  memset(base + kPage, kCanary, body - aligned);
  memset(data + size, kCanary, aligned - size);
  return data;
}

static void *guarded_calloc(void *context, size_t count, size_t size) {
  if (size && count > SIZE_MAX / size) return NULL;
  return guarded_malloc(context, count * size); /* fresh pages are zero */
}

static char *base_of(char *data) {
  return (char *)((size_t)data & ~(size_t)(kPage - 1)) - kPage;
}

static void require_canaries(const char *from, const char *to) {
  for (; from < to; ++from) {
    if ((unsigned char)*from != kCanary) {
      fputs("VIOLATED: something wrote outside an array\n", stderr);
      abort();
    }
  }
}

static void guarded_free(void *context, void *pointer, size_t size) {
  (void)context;
  (void)size;
  if (pointer == NULL) return;
  char *data = pointer, *base = base_of(data);
  const Header header = *(Header *)base;
  require_canaries(base + kPage, data);
  require_canaries(data + header.size, base + header.total - kPage);
  munmap(base, header.total);
}

static void *guarded_realloc(void *context, void *pointer, size_t size) {
  void *fresh = guarded_malloc(context, size);
  if (fresh != NULL && pointer != NULL) {
    const size_t old = ((Header *)base_of(pointer))->size;
    memcpy(fresh, pointer, old < size ? old : size);
    guarded_free(context, pointer, 0);
  }
  return fresh;
}

static PyDataMem_Handler handler = {
    "guard_pages", 1, {NULL, guarded_malloc, guarded_calloc, guarded_realloc, guarded_free}};

static PyObject *install(PyObject *self, PyObject *args) {
  (void)self;
  (void)args;
  PyObject *capsule = PyCapsule_New(&handler, "mem_handler", NULL);
  if (capsule == NULL) return NULL;
  PyObject *old = PyDataMem_SetHandler(capsule);
  Py_DECREF(capsule);
  return old;
}

static PyMethodDef methods[] = {{"install", install, METH_NOARGS, "Guard all new arrays."},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "guard_pages", NULL, -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_guard_pages(void) {
  import_array();
  return PyModule_Create(&module);
}
