/* A preloaded library that counts the calls that change or open files below a folder, fails one of them, and writes a
   journal of those that succeeded. It does nothing until `arm` is called. Built and read by calls.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
enum { READ, CREATE, WRITE, FSYNC, RENAME, CLOSE, MKDIR, REMOVE, TRUNCATE, SYMLINK };
static const char *KINDS[] = {"read", "create", "write", "fsync", "rename", "close", "mkdir", "remove", "truncate", "symlink"};
enum { RECORD, ONCE, FROM_THEN_ON, KILL };

static char root[PATH_MAX];
static long at, seen;
static int mode, number, journal = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* below: the folder; when: the call, from 0; what: a mode; error: that the call returns; to: an open file. */
void arm(const char *below, long when, int what, int error, int to) {
  snprintf(root, sizeof root, "%s/", below);
  at = when, seen = 0, mode = what, number = error, journal = to;
}

static void name_of(int handle, char *found) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t length = readlink(link, found, PATH_MAX - 1);
  found[length < 0 ? 0 : length] = 0;
}

static void resolve(int folder, const char *path, char *found) {
  char base[PATH_MAX] = "";
  if (path[0] != '/') {
    if (folder == AT_FDCWD) {
      if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
      name_of(folder, base);
    }
  }
  if (snprintf(found, PATH_MAX, path[0] == '/' ? "%s%s" : "%s/%s", base, path) >= PATH_MAX) found[0] = 0;
}

/* Whether a call on this path is ours; then the lock is held until `done`. */
static int enters(const char *path) {
  if (!root[0] || strncmp(path, root, strlen(root))) return 0;
  pthread_mutex_lock(&lock);
  return 1;
}

static int fails(int kind, const char *path) {
  long own = seen++;
  int changes = kind != READ && kind != CLOSE && kind != REMOVE; /* a full disk still deletes */
  int due = mode == FROM_THEN_ON ? own >= at && (own == at || changes) : own == at;
  if (!due || mode == RECORD) return 0;
  if (mode == KILL) syscall(SYS_kill, getpid(), SIGKILL);
  if (own == at) dprintf(2, "(call %ld failed: %s of %s)\n", own, KINDS[kind], path + strlen(root));
  return 1;
}

/* Records of the journal: six numbers, then two paths and data. */
static void done(int kind, int good, const char *path, const char *other, long offset, const void *data, long size) {
  int before = errno;
  if (mode == RECORD && journal >= 0) {
    long head[6] = {kind, good, offset, strlen(path), strlen(other), size};
    struct iovec parts[4] = {{head, sizeof head}, {(void *)path, head[3]}, {(void *)other, head[4]}, {(void *)data, size}};
    syscall(SYS_writev, journal, parts, 4);
  }
  pthread_mutex_unlock(&lock);
  errno = before;
}

static int refused(void) {
  pthread_mutex_unlock(&lock);
  errno = number;
  return -1;
}

static int opened(int folder, const char *path, int flags, mode_t permissions) {
  char place[PATH_MAX];
  resolve(folder, path, place);
  if (!enters(place)) return syscall(SYS_openat, folder, path, flags, permissions);
  int kind = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE ? CREATE : READ;
  if (fails(kind, place)) return refused();
  int is_new = kind == CREATE && syscall(SYS_faccessat, folder, path, F_OK) != 0;
  int handle = syscall(SYS_openat, folder, path, flags, permissions);
  done(kind, handle >= 0 && (is_new || flags & O_TRUNC), place, "", flags & O_TRUNC, NULL, 0);
  return handle;
}

#define OPEN_AT(name)                                       \
  int name(int folder, const char *path, int flags, ...) {  \
    va_list more;                                           \
    va_start(more, flags);                                  \
    int handle = opened(folder, path, flags, va_arg(more, mode_t)); \
    va_end(more);                                           \
    return handle;                                          \
  }
#define OPEN(name)                                          \
  int name(const char *path, int flags, ...) {              \
    va_list more;                                           \
    va_start(more, flags);                                  \
    int handle = opened(AT_FDCWD, path, flags, va_arg(more, mode_t)); \
    va_end(more);                                           \
    return handle;                                          \
  }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

#define FOPEN(name)                                                       \
  FILE *name(const char *path, const char *how) {                         \
    int plus = strchr(how, '+') != NULL;                                  \
    int flags = how[0] == 'r' ? 0 : how[0] == 'w' ? O_CREAT | O_TRUNC : O_CREAT | O_APPEND; \
    flags |= plus ? O_RDWR : how[0] == 'r' ? O_RDONLY : O_WRONLY;         \
    int handle = opened(AT_FDCWD, path, flags | O_CLOEXEC, 0666);         \
    return handle < 0 ? NULL : fdopen(handle, how);                       \
  }
FOPEN(fopen)
FOPEN(fopen64)

/* `done` of a write that began at `offset`, or that ended where the file is now. */
static ssize_t written(int handle, const char *place, ssize_t size, long offset, const void *data) {
  if (offset < 0) offset = syscall(SYS_lseek, handle, 0, SEEK_CUR) - size;
  done(WRITE, size >= 0, place, "", offset, data, size < 0 ? 0 : size);
  return size;
}

ssize_t write(int handle, const void *data, size_t size) {
  char place[PATH_MAX] = "";
  if (root[0] && handle > 2) name_of(handle, place);
  if (!enters(place)) return syscall(SYS_write, handle, data, size);
  if (fails(WRITE, place)) return refused();
  return written(handle, place, syscall(SYS_write, handle, data, size), -1, data);
}

#define PWRITE(name)                                                                  \
  ssize_t name(int handle, const void *data, size_t size, off_t offset) {             \
    char place[PATH_MAX] = "";                                                        \
    if (root[0]) name_of(handle, place);                                              \
    if (!enters(place)) return syscall(SYS_pwrite64, handle, data, size, offset);     \
    if (fails(WRITE, place)) return refused();                                        \
    return written(handle, place, syscall(SYS_pwrite64, handle, data, size, offset), offset, data); \
  }
PWRITE(pwrite)
PWRITE(pwrite64)

/* Only the first part, which is a short write. */
ssize_t writev(int handle, const struct iovec *parts, int count) {
  char place[PATH_MAX] = "";
  if (root[0] && handle > 2) name_of(handle, place);
  if (!root[0] || strncmp(place, root, strlen(root))) return syscall(SYS_writev, handle, parts, count);
  for (int part = 0; part < count; part++)
    if (parts[part].iov_len) return write(handle, parts[part].iov_base, parts[part].iov_len);
  return 0;
}

/* C's own buffers are written by calls inside of the library. */
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
  char place[PATH_MAX] = "";
  int handle = root[0] ? fileno(file) : -1;
  if (handle > 2) name_of(handle, place);
  if (!root[0] || strncmp(place, root, strlen(root))) return REAL(fwrite)(data, size, count, file);
  fflush(file);
  for (size_t sent = 0; sent < size * count;) {
    ssize_t part = write(handle, (const char *)data + sent, size * count - sent);
    if (part < 0) return sent / size;
    sent += part;
  }
  return count;
}

#define ON_HANDLE(name, kind, parameters, arguments)      \
  int name parameters {                                   \
    char place[PATH_MAX] = "";                            \
    if (root[0]) name_of(handle, place);                  \
    if (!enters(place)) return REAL(name) arguments;      \
    if (fails(kind, place)) return refused();             \
    int result = REAL(name) arguments;                    \
    done(kind, result == 0, place, "", LENGTH, NULL, 0);  \
    return result;                                        \
  }
#define LENGTH 0
ON_HANDLE(fsync, FSYNC, (int handle), (handle))
ON_HANDLE(fdatasync, FSYNC, (int handle), (handle))
#undef LENGTH
#define LENGTH length
ON_HANDLE(ftruncate, TRUNCATE, (int handle, off_t length), (handle, length))
ON_HANDLE(ftruncate64, TRUNCATE, (int handle, off_t length), (handle, length))
#undef LENGTH

/* As on Linux, a file is closed also if its close fails. */
int close(int handle) {
  char place[PATH_MAX] = "";
  if (root[0]) name_of(handle, place);
  if (!enters(place)) return syscall(SYS_close, handle);
  int failed = fails(CLOSE, place), result = syscall(SYS_close, handle);
  if (failed) return refused();
  done(CLOSE, 1, place, "", 0, NULL, 0);
  return result;
}

#define AT_PATH(name, kind, offset, parameters, arguments, folder, path) \
  int name parameters {                                                  \
    char place[PATH_MAX];                                                \
    resolve(folder, path, place);                                        \
    if (!enters(place)) return REAL(name) arguments;                     \
    if (fails(kind, place)) return refused();                            \
    int result = REAL(name) arguments;                                   \
    done(kind, result == 0, place, "", offset, NULL, 0);                 \
    return result;                                                       \
  }
AT_PATH(mkdir, MKDIR, 0, (const char *path, mode_t permissions), (path, permissions), AT_FDCWD, path)
AT_PATH(mkdirat, MKDIR, 0, (int folder, const char *path, mode_t permissions), (folder, path, permissions), folder, path)
AT_PATH(unlink, REMOVE, 0, (const char *path), (path), AT_FDCWD, path)
AT_PATH(unlinkat, REMOVE, 0, (int folder, const char *path, int flags), (folder, path, flags), folder, path)
AT_PATH(rmdir, REMOVE, 0, (const char *path), (path), AT_FDCWD, path)
AT_PATH(truncate, TRUNCATE, length, (const char *path, off_t length), (path, length), AT_FDCWD, path)
AT_PATH(truncate64, TRUNCATE, length, (const char *path, off_t length), (path, length), AT_FDCWD, path)

#define AT_TWO(name, kind, parameters, arguments, folder, path, to, other, resolved) \
  int name parameters {                                          \
    char place[PATH_MAX], target[PATH_MAX];                      \
    resolve(folder, path, place);                                \
    if (resolved) resolve(to, other, target);                    \
    else snprintf(target, sizeof target, "%s", other);           \
    if (!enters(place)) return REAL(name) arguments;             \
    if (fails(kind, place)) return refused();                    \
    int result = REAL(name) arguments;                           \
    done(kind, result == 0, place, target, 0, NULL, 0);          \
    return result;                                               \
  }
AT_TWO(rename, RENAME, (const char *path, const char *other), (path, other), AT_FDCWD, path, AT_FDCWD, other, 1)
AT_TWO(renameat, RENAME, (int folder, const char *path, int to, const char *other), (folder, path, to, other), folder,
       path, to, other, 1)
AT_TWO(symlink, SYMLINK, (const char *other, const char *path), (other, path), AT_FDCWD, path, 0, other, 0)
AT_TWO(symlinkat, SYMLINK, (const char *other, int folder, const char *path), (other, folder, path), folder, path, 0,
       other, 0)

/* Refused, so that copies are made of reads and writes. */
ssize_t sendfile(int out, int in, off_t *offset, size_t size) {
  if (!root[0]) return REAL(sendfile)(out, in, offset, size);
  errno = ENOTSOCK;
  return -1;
}
ssize_t sendfile64(int out, int in, off64_t *offset, size_t size) {
  if (!root[0]) return REAL(sendfile64)(out, in, offset, size);
  errno = ENOTSOCK;
  return -1;
}
