/* A disk that fails: preloaded into a process, makes the n-th change of a file below a folder fail.

   Changes are counted from `io_faults_arm` on: write, pwrite, fsync, fdatasync, rename, unlink and
   ftruncate, when they concern a file below $IO_FAULTS_HOME. The n-th fails in one of four ways:

     1  EIO, once
     2  ENOSPC at this and every later call that needs room, as on a full disk
     3  half of the bytes are written, once (a call that is no write goes through)
     4  half of the bytes are written, then ENOSPC as in 2
*/

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum way { OFF, BROKEN, FULL, SHORT, SHORT_THEN_FULL };
enum verdict { PASS, FAIL, HALF };

static atomic_long calls;
static atomic_long target;
static atomic_int way;
static int notes = -1;

void io_faults_arm(long at, int how) {
  atomic_store(&way, OFF);
  atomic_store(&calls, 0);
  atomic_store(&target, at);
  atomic_store(&way, how);
}

/* The number of changes since the last call of io_faults_arm. */
long io_faults_count(void) { return atomic_load(&calls); }

/* Write name and path of every change to a file, from now on. */
void io_faults_note(const char *path) {
  notes = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);
}

static int is_below_home(const char *path) {
  static const char *home;
  if (home == NULL) home = getenv("IO_FAULTS_HOME");
  return home != NULL && *home != 0 && strncmp(path, home, strlen(home)) == 0;
}

static enum verdict judge(const char *call, const char *path, int writes, int needs_room) {
  if (!is_below_home(path)) return PASS;
  long number = atomic_fetch_add(&calls, 1) + 1;
  if (notes >= 0) dprintf(notes, "%s %s\n", call, path);
  long at = atomic_load(&target);
  enum way how = atomic_load(&way);
  if (how == OFF || number < at) return PASS;
  if (number == at) {
    if (how == SHORT || how == SHORT_THEN_FULL) return writes ? HALF : PASS;
    errno = how == BROKEN ? EIO : ENOSPC;
    return how == BROKEN || needs_room ? FAIL : PASS;
  }
  errno = ENOSPC;
  return (how == FULL || how == SHORT_THEN_FULL) && needs_room ? FAIL : PASS;
}

static enum verdict judge_open(const char *call, int descriptor, int writes, int needs_room) {
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return PASS;
  path[length] = 0;
  return judge(call, path, writes, needs_room);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static size_t half(size_t count) { return count > 1 ? count / 2 : count; }

ssize_t write(int descriptor, const void *data, size_t count) {
  enum verdict verdict = judge_open("write", descriptor, 1, 1);
  if (verdict == FAIL) return -1;
  return REAL(write)(descriptor, data, verdict == HALF ? half(count) : count);
}

/* Python and SQLite call one or the other name; both are the same call on 64 bits. */
#define POSITIONED(name, offset_t)                                                      \
  ssize_t name(int descriptor, const void *data, size_t count, offset_t offset) {       \
    enum verdict verdict = judge_open("pwrite", descriptor, 1, 1);                      \
    if (verdict == FAIL) return -1;                                                     \
    return REAL(name)(descriptor, data, verdict == HALF ? half(count) : count, offset); \
  }
POSITIONED(pwrite, off_t)
POSITIONED(pwrite64, off64_t)

#define SYNCED(name)                                            \
  int name(int descriptor) {                                    \
    if (judge_open(#name, descriptor, 0, 1) == FAIL) return -1; \
    return REAL(name)(descriptor);                              \
  }
SYNCED(fsync)
SYNCED(fdatasync)

#define TRUNCATED(name, offset_t)                                     \
  int name(int descriptor, offset_t length) {                         \
    if (judge_open("ftruncate", descriptor, 0, 0) == FAIL) return -1; \
    return REAL(name)(descriptor, length);                            \
  }
TRUNCATED(ftruncate, off_t)
TRUNCATED(ftruncate64, off64_t)

int rename(const char *from, const char *to) {
  if (judge("rename", to, 0, 1) == FAIL) return -1;
  return REAL(rename)(from, to);
}

int unlink(const char *path) {
  if (judge("unlink", path, 0, 0) == FAIL) return -1;
  return REAL(unlink)(path);
}
